"""Evaluates a stored run again in memory: with other overrides, or to check its result."""

from __future__ import annotations

from functools import partial

from gradledger_monitor.evaluation import feed
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation import pending
from gradledger_monitor.store.runs import dump


class CannotReplay(LookupError):
    """Records of the run are pruned."""


def replay(store: Store, run: str, overrides: RuleOverrides) -> EvaluationResult:
    """The result of every step evaluated so far, under these overrides; nothing is written.

    Raises ``UnknownRun`` and ``CannotReplay``. Inactivity is taken from what was stored at its
    time: whether a run is inactive is decided while it is.
    """
    if last := dump.last_pruned_step(store, run):
        reason = f"the records up to step {last} are pruned (keep_detail_days)"
        raise CannotReplay(f"run {run!r} cannot be evaluated again: {reason}")
    status = pending.run_status(store, run)
    state = RunState(status.info, overrides, status.generation)
    state.stored_inactivity = status.inactivity
    state.set_eval_metrics(pending.eval_metrics(store, status))
    for _ in feed.replay(state, partial(pending.next_steps, store, status), status.progress):
        pass
    return state.result()
