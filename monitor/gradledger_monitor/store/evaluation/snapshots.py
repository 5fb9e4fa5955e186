"""The evaluation state of runs, saved at some of their steps.

How far back one has to go is not known beforehand: to the last one after a restart, further when
a record came late. So they stand close together where the run is, and ever further apart behind:
the n-th is written over the one before it that 2 divides as often as n.
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
BASE = -1  # the level of the one that records were given up for
LARGEST = 2**20  # bytes of which there are several; of larger ones, one


def usable_states(store: Store, run: int, stamp: str) -> list[bytes]:
    """The states that this code can go on with, the last one first.

    The base counts whatever the settings were when it was made: what was pruned cannot be evaluated
    with others.
    """
    base = and_(snapshots.c.level == BASE, snapshots.c.evaluator == version())
    query = select(snapshots.c.state).where(
        snapshots.c.run == run, or_(snapshots.c.stamp == stamp, base)
    )
    order = ((snapshots.c.stamp == stamp).desc(), snapshots.c.steps.desc())
    with store.reading() as connection:
        return list(connection.scalars(query.order_by(*order)))


def any_exist(store: Store, run: int) -> bool:
    """Whether there is any, of whatever version."""
    with store.reading() as connection:
        query = select(snapshots.c.level).where(snapshots.c.run == run)
        return connection.execute(query.limit(1)).first() is not None


def is_due(fold: RunState) -> bool:
    """Whether so much was judged since the last one that it is time."""
    return fold.at.steps // EVERY_STEPS > fold.kept_at // EVERY_STEPS


def write(
    connection: Connection, run: int, fold: RunState, stamp: str, *, base: bool = False
) -> None:
    """Save the state of a fold. As the base it is all there is: steps before it are not evaluated
    again."""
    fold.kept_at = fold.at.steps
    state = fold.snapshot()
    if base:
        connection.execute(delete(snapshots).where(snapshots.c.run == run))
    row = {
        "run": run,
        "level": BASE if base else _level_of(fold, state),
        "steps": fold.at.steps,
        "taken": time.time(),
        "reached": dict(fold.at.reached),
        "evaluator": version(),
        "stamp": stamp,
        "state": state,
    }
    statement = dialects.insert(connection, snapshots).values(row)
    new = {name: statement.excluded[name] for name in row if name not in ("run", "level")}
    connection.execute(statement.on_conflict_do_update(index_elements=["run", "level"], set_=new))


def _level_of(fold: RunState, state: bytes) -> int:
    return 0 if len(state) > LARGEST else _level(fold.at.steps // EVERY_STEPS)


def _level(number: int) -> int:
    """How often 2 divides a number; 0 of 0."""
    return (number & -number).bit_length() - 1 if number else 0


def discard(connection: Connection, run: int, since: Mapping[int, int] | None = None) -> None:
    """Remove those that took in a step of an optimizer at or after these; None removes all."""
    here = (snapshots.c.run == run, snapshots.c.level != BASE)
    query = select(snapshots.c.level, snapshots.c.reached).where(*here)
    wrong = [
        level
        for level, reached in connection.execute(query)
        if since is None or any(reached.get(o, 0) >= step for o, step in since.items())
    ]
    connection.execute(delete(snapshots).where(*here, snapshots.c.level.in_(wrong)))
