"""Restores the evaluation state of a run in a process that does not hold it in memory.

From the last usable snapshot and the steps since; without one, from the first record; where that is
pruned, from the stored result. If a snapshot should have been usable and was not, a note on the run
states why its steps were evaluated again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

from gradledger_monitor.evaluation import feed
from gradledger_monitor.evaluation.evaluator_version import IMPORTED, stamp, version
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.snapshot_codec import Position, SnapshotError
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation import pending, snapshots
from gradledger_monitor.store.evaluation.pending import RunStatus
from gradledger_monitor.store.evaluation.results import save_carried
from gradledger_monitor.store.runs import queries

log = logging.getLogger(__name__)

# The reasons in the notes.
DAMAGED = "the saved evaluation state is damaged"
MISSING = "the saved evaluation state is missing"
OTHER_VERSION = "another version of gradledger evaluated the run before"
ELSEWHERE = "the run was imported"
EVALUATED_AGAIN = "Evaluated again from the stored records: {why}."
CARRIED = (
    "Evaluated by an earlier version up to step {last:,}: the first records are pruned and {why}, "
    "so the findings up to there are kept and cannot be evaluated again."
)


def restore(store: Store, status: RunStatus, overrides: RuleOverrides) -> RunState:
    """The state of a run at the last snapshot that can be used, or at its beginning."""
    damaged = False
    for snapshot in snapshots.usable_states(store, status.key, stamp(overrides, status.info)):
        state = _new_state(status, overrides)
        try:
            state.restore(snapshot)
        except SnapshotError as error:
            log.warning("run %s: %s", status.info.run, error)
            damaged = True
        else:
            state.note = EVALUATED_AGAIN.format(why=DAMAGED) if damaged else None
            return state
    state = _new_state(status, overrides)
    reason = DAMAGED if damaged else _reason_without_snapshot(store, status)
    if status.pruned:
        _carry(store, status, state, overrides, reason or MISSING)
    elif reason:
        state.note = EVALUATED_AGAIN.format(why=reason)
    return state


def catch_up(store: Store, status: RunStatus, state: RunState) -> Iterator[None]:
    """Evaluate the steps since the snapshot that were evaluated before; yields after each step."""
    read = partial(pending.next_steps, store, status)
    return feed.replay(state, read, status.progress)


def _new_state(status: RunStatus, overrides: RuleOverrides) -> RunState:
    state = RunState(status.info, overrides, status.generation)
    state.stored_inactivity = status.inactivity
    return state


def _reason_without_snapshot(store: Store, status: RunStatus) -> str | None:
    """Why there is no snapshot of an evaluated run; None where none is expected."""
    if status.steps and status.evaluator != version():
        return ELSEWHERE if status.evaluator == IMPORTED else OTHER_VERSION
    expected = status.steps >= snapshots.EVERY_STEPS and not status.rewind
    return MISSING if expected and not snapshots.any_exist(store, status.key) else None


def _carry(
    store: Store, status: RunStatus, state: RunState, overrides: RuleOverrides, why: str
) -> None:
    """Continue from the stored findings, and save that as the base at once: all later steps can be
    evaluated again from there."""
    inactive_after = {o: step for o, step in status.inactivity if status.progress.get(o) == step}
    position = Position(
        reached=dict(status.progress),
        inactive_after=inactive_after,
        steps=status.steps,
        tokens=status.tokens,
    )
    state.carry(queries.evaluation(store, status.info.run), position)
    last = max(status.progress.values(), default=0)
    note = CARRIED.format(last=last, why=why)
    log.warning("run %s: %s", status.info.run, note)
    save_carried(store, status, state, stamp(overrides, status.info), note)
