"""The judge's memory of runs, kept at some of their steps.

How far back one has to go is not known beforehand: to the last one after a restart, further when
a record came late. So they stand close together where the run is, and ever further apart behind:
the n-th is written over the one before it that 2 divides as often as n.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import Connection, delete, or_, select

from gradledger_monitor.fold import Fold
from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import snapshots

EVERY_STEPS = 2_048
BASE = -1  # the level of the one that records were given up for
LARGEST = 2**20  # bytes of which there are several; of larger ones, one


def newest(store: Store, run: int, stamp: str) -> bytes | None:
    """The last state that this code can go on with; or else the base, which is all there is."""
    usable = or_(snapshots.c.stamp == stamp, snapshots.c.level == BASE)
    query = select(snapshots.c.state).where(snapshots.c.run == run, usable)
    order = ((snapshots.c.stamp == stamp).desc(), snapshots.c.steps.desc())
    with store.reading() as connection:
        return connection.scalars(query.order_by(*order).limit(1)).first()


def is_due(fold: Fold) -> bool:
    """Whether so much was judged since the last one that it is time."""
    return fold.at.steps // EVERY_STEPS > fold.kept_at // EVERY_STEPS


def write(connection: Connection, run: int, fold: Fold, stamp: str) -> None:
    """Keep the state of a fold."""
    fold.kept_at = fold.at.steps
    state = fold.keep()
    row = {
        "run": run,
        "level": 0 if len(state) > LARGEST else _level(fold.at.steps // EVERY_STEPS),
        "steps": fold.at.steps,
        "taken": time.time(),
        "reached": dict(fold.at.reached),
        "stamp": stamp,
        "state": state,
    }
    statement = dialects.insert(connection, snapshots).values(row)
    new = {name: statement.excluded[name] for name in row if name not in ("run", "level")}
    connection.execute(statement.on_conflict_do_update(index_elements=["run", "level"], set_=new))


def _level(number: int) -> int:
    """How often 2 divides a number; 0 of 0."""
    return (number & -number).bit_length() - 1 if number else 0


def forget(connection: Connection, run: int, since: Mapping[int, int] | None = None) -> None:
    """Remove those that took in a step of an optimizer at or after these; None removes all."""
    here = (snapshots.c.run == run, snapshots.c.level != BASE)
    query = select(snapshots.c.level, snapshots.c.reached).where(*here)
    wrong = [
        level
        for level, reached in connection.execute(query)
        if since is None or any(reached.get(o, 0) >= step for o, step in since.items())
    ]
    connection.execute(delete(snapshots).where(*here, snapshots.c.level.in_(wrong)))
