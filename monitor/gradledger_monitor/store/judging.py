"""What the judge reads: runs with news, where they stand, and their next steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import or_, select

from gradledger_monitor.facts import RunInfo
from gradledger_monitor.fold import Place
from gradledger_monitor.rules.base import Silence
from gradledger_monitor.store.choosing import RULES
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import unpack_record
from gradledger_monitor.store.reading import info_of
from gradledger_monitor.store.tables import chosen, evals, progress, ranks, runs, silences, steps
from gradledger_monitor.waiting import Arrived

ROWS_AT_ONCE = 2_048


@dataclass(frozen=True)
class Standing:
    """A run at the moment the judge takes it up."""

    key: int
    info: RunInfo
    revision: int
    generation: int
    rewind: bool
    progress: dict[int, int]  # last step judged, by optimizer; 0 is none yet
    ended: frozenset[int]  # ranks that said they were done
    silences: dict[Place, Silence]
    stall_at: float | None
    chosen: int  # how often the rules were chosen otherwise; 0 is never

    @property
    def over(self) -> bool:
        """Whether all ranks have ended."""
        return len(self.ended) >= self.info.world_size


@dataclass(frozen=True)
class Sign:
    """What was last heard of a rank, and when."""

    last_seen: float
    beat: float | None
    backwards: int | None


def pending(store: Store, waited_since: float, now: float) -> dict[str, int]:
    """Runs by id, with their keys: those with new records, those with a step that has waited for
    ranks since then, and those that seem to stand still."""
    news = runs.c.revision > runs.c.judged_revision
    due = or_(news, runs.c.waiting_since <= waited_since, runs.c.stall_at <= now)
    query = select(runs.c.id, runs.c.key).where(due).order_by(runs.c.key)
    with store.reading() as connection:
        return dict(connection.execute(query).all())


def standing(store: Store, run: str) -> Standing:
    """Where the judgement of a run stands."""
    changes = select(chosen.c.revision).where(chosen.c.name == RULES).scalar_subquery()
    with store.reading() as connection:
        query = select(runs, changes.label("chosen")).where(runs.c.id == run)
        row = connection.execute(query).one()
        last = select(progress.c.optimizer, progress.c.step).where(progress.c.run == row.key)
        gone = select(ranks.c.rank).where(ranks.c.run == row.key, ranks.c.ended.is_not(None))
        quiet = connection.execute(select(silences).where(silences.c.run == row.key))
        return Standing(
            key=row.key,
            info=info_of(row),
            revision=row.revision,
            generation=row.generation,
            rewind=row.rewind,
            progress=dict(connection.execute(last).all()),
            ended=frozenset(connection.scalars(gone)),
            silences={
                (o.optimizer, o.after): Silence(o.seconds, o.silent, o.backwards) for o in quiet
            },
            stall_at=row.stall_at,
            chosen=row.chosen or 0,
        )


def signs_of_life(store: Store, at: Standing) -> dict[int, Sign]:
    """What was last heard of the ranks that have not ended."""
    columns = (ranks.c.rank, ranks.c.last_seen, ranks.c.beat, ranks.c.backwards)
    query = select(*columns).where(ranks.c.run == at.key, ranks.c.ended.is_(None))
    with store.reading() as connection:
        return {rank: Sign(*said) for rank, *said in connection.execute(query)}


def next_steps(
    store: Store, at: Standing, optimizer: int, after: int, last: int | None = None
) -> tuple[list[Arrived], bool]:
    """The steps after one, in order, as many as fit in memory; and whether there are more."""
    limit = max(ROWS_AT_ONCE, 2 * at.info.world_size)
    here = [steps.c.run == at.key, steps.c.optimizer == optimizer, steps.c.step > after]
    here += [steps.c.step <= last] if last is not None else []
    columns = (steps.c.step, steps.c.rank, steps.c.received, steps.c.record)
    query = select(*columns).where(*here).order_by(steps.c.step, steps.c.rank).limit(limit)
    with store.reading() as connection:
        rows = connection.execute(query).all()
    arrived = [_arrived(optimizer, step, group) for step, group in groupby(rows, itemgetter(0))]
    more = len(rows) == limit
    return (arrived[:-1] if more else arrived), more  # the last may have been cut in two


def evaluations(store: Store, at: Standing) -> dict[str, dict[int, float]]:
    """Evaluation metrics by name and step; of several ranks, the lowest one's."""
    query = select(evals.c.name, evals.c.step, evals.c.value).where(evals.c.run == at.key)
    found: dict[str, dict[int, float]] = {}
    with store.reading() as connection:
        for name, step, value in connection.execute(query.order_by(evals.c.rank.desc())):
            found.setdefault(name, {})[step] = math.nan if value is None else value
    return found


def _arrived(optimizer: int, step: int, rows: Iterable[Sequence[Any]]) -> Arrived:
    records, first = {}, math.inf
    for _, rank, received, blob in rows:
        records[rank] = unpack_record(blob)
        first = min(first, received)
    return Arrived(optimizer, step, first, records)
