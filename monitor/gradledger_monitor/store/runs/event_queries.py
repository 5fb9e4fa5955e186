"""What happened in a run, found in the figures of its steps by the database itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, or_, select

from gradledger_monitor.store.averages import mean_of, summable
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.tables import BUCKET_STEPS, buckets, evals, facts, inactivity

MOST = 400  # of a kind

PAUSE_SECONDS, PAUSE_STEPS = 60.0, 20.0


@dataclass(frozen=True)
class Change:
    """A figure that is not what it was at the step before."""

    step: int
    time: float
    before: float
    now: float


@dataclass(frozen=True)
class InactivePeriod:
    """The judge noted that no step came."""

    after: int
    seconds: float


@dataclass(frozen=True)
class EvalMetric:
    """One evaluation metric."""

    step: int
    time: float
    name: str
    value: float | None


def changes(store: Store, run: str, optimizer: int, figure: str) -> list[Change]:
    """Where a figure changed. Raises ``UnknownRun``."""
    low, high = (buckets.c[f"{figure}_{part}"] for part in ("low", "high"))
    moves = or_(low != high, low != func.lag(high).over(order_by=buckets.c.bucket))
    found = _found(store, run, optimizer, facts.c[figure], moves)
    return [change for change in found if change.now != change.before]


def jumps(store: Store, run: str, optimizer: int, figure: str, times: float) -> list[Change]:
    """Where a figure changed so many times or more, up or down. Raises ``UnknownRun``."""
    low, high = (buckets.c[f"{figure}_{part}"] for part in ("low", "high"))
    before = [func.lag(end).over(order_by=buckets.c.bucket) for end in (low, high)]
    moves = or_(high >= low * times, high >= before[0] * times, low * times <= before[1])
    found = _found(store, run, optimizer, facts.c[figure], moves)
    return [c for c in found if c.before > 0 and not c.before / times < c.now < c.before * times]


def pauses(store: Store, run: str, optimizer: int, usual: float) -> list[Change]:
    """Where long nothing came between two steps; ``usual`` seconds lie between two others."""
    longest = max(PAUSE_SECONDS, PAUSE_STEPS * usual)
    before = func.lag(buckets.c.time).over(order_by=buckets.c.bucket)
    moves = or_(before.is_(None), buckets.c.time - before > longest)
    found = _found(store, run, optimizer, facts.c.time, moves)
    return [change for change in found if change.now - change.before > longest]


def _found(
    store: Store, run: str, optimizer: int, column: ColumnElement[Any], moves: ColumnElement[bool]
) -> list[Change]:
    """Steps beside the ones before them, in the buckets where a figure moves at all."""
    c = buckets.c
    with store.reading() as connection:
        key = require_run(connection, run).key
        marked = select(c.bucket, moves.label("moves")).where(
            c.run == key, c.optimizer == optimizer
        )
        every = marked.subquery()
        places = select(every.c.bucket).where(every.c.moves).order_by(every.c.bucket).limit(MOST)
        found = [
            change
            for stretch in connection.scalars(places)
            for change in _within(connection, key, optimizer, column, stretch * BUCKET_STEPS)
        ]
    return found[:MOST]


def _within(
    connection: Connection, run: int, optimizer: int, column: ColumnElement[Any], first: int
) -> Iterator[Change]:
    """The steps of a stretch, each beside the one before it, which may lie further back."""
    here = (facts.c.run == run, facts.c.optimizer == optimizer, column.is_not(None))
    query = select(facts.c.step, facts.c.time, column).where(*here)
    before = query.where(facts.c.step < first).order_by(facts.c.step.desc()).limit(1)
    inside = query.where(facts.c.step.between(first, first + BUCKET_STEPS - 1)).order_by(
        facts.c.step
    )
    rows = [*connection.execute(before).all(), *connection.execute(inside).all()]
    for (_, _, was), (step, time, now) in pairwise(rows):
        yield Change(step, time, was, now)


def skipped_steps(store: Store, run: str, optimizer: int) -> list[tuple[int, float]]:
    """Steps that the GradScaler skipped, with their times."""
    with store.reading() as connection:
        query = _of(require_run(connection, run).key, optimizer, facts.c.skipped == 1)
        return [(row.step, row.time) for row in connection.execute(query.limit(MOST))]


def incomplete_steps(store: Store, run: str, optimizer: int) -> list[tuple[int, float]]:
    """Steps of which some rank was not heard, with their times."""
    with store.reading() as connection:
        row = require_run(connection, run)
        query = _of(row.key, optimizer, facts.c.ranks < row.world_size)
        return [(row.step, row.time) for row in connection.execute(query.limit(MOST))]


def _of(run: int, optimizer: int, wanted: ColumnElement[bool]) -> Select[Any]:
    here = (facts.c.run == run, facts.c.optimizer == optimizer, wanted)
    return select(facts.c.step, facts.c.time).where(*here).order_by(facts.c.step)


def usual_seconds(store: Store, run: str, optimizer: int) -> float:
    """Seconds from one step to the next, on average."""
    with store.reading() as connection:
        mine = facts.c.run == require_run(connection, run).key
        whole = (func.count(), func.max(facts.c.time) - func.min(facts.c.time))
        here = (mine, facts.c.optimizer == optimizer)
        count, seconds = connection.execute(select(*whole).where(*here)).one()
    return seconds / (count - 1) if count > 1 else 0.0


def inactive_periods(store: Store, run: str, optimizer: int) -> list[InactivePeriod]:
    """What the judge noted of no step coming."""
    with store.reading() as connection:
        mine = inactivity.c.run == require_run(connection, run).key
        query = select(inactivity.c.after, inactivity.c.seconds)
        query = query.where(mine, inactivity.c.optimizer == optimizer).order_by(inactivity.c.after)
        return [InactivePeriod(*row) for row in connection.execute(query.limit(MOST))]


def eval_metrics_near(store: Store, run: str, around: int) -> list[EvalMetric]:
    """The evaluations that lie closest to a step."""
    with store.reading() as connection:
        c, mine = evals.c, evals.c.run == require_run(connection, run).key
        query = select(c.step, func.min(c.time), c.name, mean_of(c.value)).where(mine)
        query = query.group_by(c.step, c.name).order_by(func.abs(c.step - around))
        return [EvalMetric(*row) for row in connection.execute(query.limit(MOST))]


@dataclass(frozen=True)
class Spent:
    """What a run spent from one step on."""

    steps: int
    tokens: float
    begun: float  # when that step ended
    ended: float


def spent_since(store: Store, run: str, optimizer: int, step: int) -> Spent | None:
    """What was spent from a step on; None where no figure is left of that time."""
    with store.reading() as connection:
        mine = facts.c.run == require_run(connection, run).key
        whole = (
            func.count(),
            func.sum(summable(facts.c.tokens)),
            func.min(facts.c.time),
            func.max(facts.c.time),
        )
        here = (mine, facts.c.optimizer == optimizer, facts.c.step >= step)
        count, tokens, begun, ended = connection.execute(select(*whole).where(*here)).one()
    return Spent(count, tokens or 0.0, begun, ended) if count else None


def step_ranges(rows: Iterable[tuple[int, float]]) -> list[tuple[int, int, float]]:
    """Neighbouring steps as buckets: first, last, and the time of the first."""
    found: list[tuple[int, int, float]] = []
    for step, time in rows:
        if found and found[-1][1] == step - 1:
            found[-1] = (found[-1][0], step, found[-1][2])
        else:
            found.append((step, step, time))
    return found
