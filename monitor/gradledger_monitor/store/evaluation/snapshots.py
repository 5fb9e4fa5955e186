"""The evaluation state of runs, saved at some of their steps.

A restart needs the last snapshot; a record that comes late needs one from before its step. So
snapshots are dense near the end of a run and sparser further back: the n-th has the level "how
often 2 divides n", and replaces the last one of that level.

    n      1  2  3  4  5  6  7  8
    level  0  1  0  2  0  1  0  3      after the 8th, the snapshots 4, 6, 7 and 8 are left
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import Connection, and_, delete, or_, select

from gradledger_monitor.evaluation.evaluator_version import version
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import snapshots

EVERY_STEPS = 2_048
BASE = -1  # the level of the snapshot that replaces pruned records
LARGEST = 2**20  # bytes; larger snapshots have level 0, so only the last one is kept


def usable_states(store: Store, run: int, stamp: str) -> list[bytes]:
    """The states that this version can restore, the last one first.

    The base is restored whatever the settings were when it was saved: pruned steps cannot be
    evaluated again with other settings.
    """
    base = and_(snapshots.c.level == BASE, snapshots.c.evaluator == version())
    query = select(snapshots.c.state).where(
        snapshots.c.run == run, or_(snapshots.c.stamp == stamp, base)
    )
    order = ((snapshots.c.stamp == stamp).desc(), snapshots.c.steps.desc())
    with store.reading() as connection:
        return list(connection.scalars(query.order_by(*order)))


def any_exist(store: Store, run: int) -> bool:
    """Whether a run has a snapshot of any version."""
    with store.reading() as connection:
        query = select(snapshots.c.level).where(snapshots.c.run == run)
        return connection.execute(query.limit(1)).first() is not None


def is_due(state: RunState) -> bool:
    """Whether the run passed a multiple of ``EVERY_STEPS`` since its last snapshot."""
    return state.position.steps // EVERY_STEPS > state.saved_at_steps // EVERY_STEPS


def write(
    connection: Connection, run: int, state: RunState, stamp: str, *, base: bool = False
) -> None:
    """Save the state of a run. A base replaces all snapshots: earlier steps are never evaluated
    again."""
    state.saved_at_steps = state.position.steps
    data = state.snapshot()
    if base:
        connection.execute(delete(snapshots).where(snapshots.c.run == run))
    row = {
        "run": run,
        "level": BASE if base else _level_of(state, data),
        "steps": state.position.steps,
        "taken": time.time(),
        "reached": dict(state.position.reached),
        "evaluator": version(),
        "stamp": stamp,
        "state": data,
    }
    statement = dialects.insert(connection, snapshots).values(row)
    new = {name: statement.excluded[name] for name in row if name not in ("run", "level")}
    connection.execute(statement.on_conflict_do_update(index_elements=["run", "level"], set_=new))


def _level_of(state: RunState, data: bytes) -> int:
    return 0 if len(data) > LARGEST else _level(state.position.steps // EVERY_STEPS)


def _level(number: int) -> int:
    """How often 2 divides a number; 0 for 0."""
    return (number & -number).bit_length() - 1 if number else 0


def discard(connection: Connection, run: int, since: Mapping[int, int] | None = None) -> None:
    """Remove snapshots that include these steps of optimizers or later ones; None: all of them."""
    of_run = (snapshots.c.run == run, snapshots.c.level != BASE)
    query = select(snapshots.c.level, snapshots.c.reached).where(*of_run)
    outdated = [
        level
        for level, reached in connection.execute(query)
        if since is None or any(reached.get(o, 0) >= step for o, step in since.items())
    ]
    connection.execute(delete(snapshots).where(*of_run, snapshots.c.level.in_(outdated)))
