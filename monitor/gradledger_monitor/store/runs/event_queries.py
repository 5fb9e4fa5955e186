"""Events of a run, found by the database in the metrics of its steps.

Buckets are searched first, for the lowest and highest values show where a metric may have changed;
then only the steps of those buckets are read.
"""

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

MOST = 400  # events of a kind

PAUSE_SECONDS, PAUSE_STEPS = 60.0, 20.0


@dataclass(frozen=True)
class Change:
    """A metric that differs from its value at the step before."""

    step: int
    time: float
    before: float
    now: float


@dataclass(frozen=True)
class InactivePeriod:
    """A period without a step, as the evaluator noted it."""

    after: int
    seconds: float


@dataclass(frozen=True)
class EvalMetric:
    """An evaluation metric at a step."""

    step: int
    time: float
    name: str
    value: float | None


def changes(store: Store, run: str, optimizer: int, metric: str) -> list[Change]:
    """The steps at which a metric changed. Raises ``UnknownRun``."""
    low, high = (buckets.c[f"{metric}_{part}"] for part in ("low", "high"))
    moves = or_(low != high, low != func.lag(high).over(order_by=buckets.c.bucket))
    candidates = _changes_where(store, run, optimizer, facts.c[metric], moves)
    return [change for change in candidates if change.now != change.before]


def jumps(store: Store, run: str, optimizer: int, metric: str, factor: float) -> list[Change]:
    """The steps at which a metric changed by ``factor`` or more. Raises ``UnknownRun``."""
    low, high = (buckets.c[f"{metric}_{part}"] for part in ("low", "high"))
    before = [func.lag(end).over(order_by=buckets.c.bucket) for end in (low, high)]
    moves = or_(high >= low * factor, high >= before[0] * factor, low * factor <= before[1])
    candidates = _changes_where(store, run, optimizer, facts.c[metric], moves)
    return [
        c for c in candidates if c.before > 0 and not c.before / factor < c.now < c.before * factor
    ]


def pauses(store: Store, run: str, optimizer: int, usual: float) -> list[Change]:
    """Long pauses between two steps; ``usual`` is the mean time from one step to the next."""
    longest = max(PAUSE_SECONDS, PAUSE_STEPS * usual)
    before = func.lag(buckets.c.time).over(order_by=buckets.c.bucket)
    moves = or_(before.is_(None), buckets.c.time - before > longest)
    candidates = _changes_where(store, run, optimizer, facts.c.time, moves)
    return [change for change in candidates if change.now - change.before > longest]


def _changes_where(
    store: Store, run: str, optimizer: int, column: ColumnElement[Any], moves: ColumnElement[bool]
) -> list[Change]:
    """Changes from each step to the next, in the buckets in which the metric changes at all."""
    c = buckets.c
    with store.reading() as connection:
        key = require_run(connection, run).key
        marked = select(c.bucket, moves.label("moves")).where(
            c.run == key, c.optimizer == optimizer
        )
        marks = marked.subquery()
        moving = select(marks.c.bucket).where(marks.c.moves).order_by(marks.c.bucket).limit(MOST)
        events = [
            change
            for bucket in connection.scalars(moving)
            for change in _within(connection, key, optimizer, column, bucket * BUCKET_STEPS)
        ]
    return events[:MOST]


def _within(
    connection: Connection, run: int, optimizer: int, column: ColumnElement[Any], first: int
) -> Iterator[Change]:
    """The changes at the steps of a bucket; the step before the first may be far back."""
    measured = (facts.c.run == run, facts.c.optimizer == optimizer, column.is_not(None))
    query = select(facts.c.step, facts.c.time, column).where(*measured)
    before = query.where(facts.c.step < first).order_by(facts.c.step.desc()).limit(1)
    inside = query.where(facts.c.step.between(first, first + BUCKET_STEPS - 1)).order_by(
        facts.c.step
    )
    rows = [*connection.execute(before).all(), *connection.execute(inside).all()]
    for (_, _, before_value), (step, time, value) in pairwise(rows):
        yield Change(step=step, time=time, before=before_value, now=value)


def skipped_steps(store: Store, run: str, optimizer: int) -> list[tuple[int, float]]:
    """Steps that the GradScaler skipped, with their times."""
    with store.reading() as connection:
        query = _steps_where(require_run(connection, run).key, optimizer, facts.c.skipped == 1)
        return [(row.step, row.time) for row in connection.execute(query.limit(MOST))]


def incomplete_steps(store: Store, run: str, optimizer: int) -> list[tuple[int, float]]:
    """Steps that miss the record of a rank, with their times."""
    with store.reading() as connection:
        row = require_run(connection, run)
        query = _steps_where(row.key, optimizer, facts.c.ranks < row.world_size)
        return [(row.step, row.time) for row in connection.execute(query.limit(MOST))]


def _steps_where(run: int, optimizer: int, condition: ColumnElement[bool]) -> Select[Any]:
    conditions = (facts.c.run == run, facts.c.optimizer == optimizer, condition)
    return select(facts.c.step, facts.c.time).where(*conditions).order_by(facts.c.step)


def usual_seconds(store: Store, run: str, optimizer: int) -> float:
    """Seconds from one step to the next, on average."""
    with store.reading() as connection:
        of_run = facts.c.run == require_run(connection, run).key
        columns = (func.count(), func.max(facts.c.time) - func.min(facts.c.time))
        query = select(*columns).where(of_run, facts.c.optimizer == optimizer)
        count, seconds = connection.execute(query).one()
    return seconds / (count - 1) if count > 1 else 0.0


def inactive_periods(store: Store, run: str, optimizer: int) -> list[InactivePeriod]:
    """The periods without a step."""
    with store.reading() as connection:
        of_run = inactivity.c.run == require_run(connection, run).key
        query = select(inactivity.c.after, inactivity.c.seconds)
        query = query.where(of_run, inactivity.c.optimizer == optimizer).order_by(
            inactivity.c.after
        )
        return [
            InactivePeriod(row.after, row.seconds) for row in connection.execute(query.limit(MOST))
        ]


def eval_metrics_near(store: Store, run: str, around: int) -> list[EvalMetric]:
    """The evaluation metrics closest to a step."""
    with store.reading() as connection:
        c, of_run = evals.c, evals.c.run == require_run(connection, run).key
        query = select(c.step, func.min(c.time), c.name, mean_of(c.value)).where(of_run)
        query = query.group_by(c.step, c.name).order_by(func.abs(c.step - around))
        return [
            EvalMetric(step=step, time=time, name=name, value=value)
            for step, time, name, value in connection.execute(query.limit(MOST))
        ]


@dataclass(frozen=True)
class Spent:
    """Steps, tokens and time that a run spent from a step on."""

    steps: int
    tokens: float
    started: float  # when that step ended
    ended: float


def spent_since(store: Store, run: str, optimizer: int, step: int) -> Spent | None:
    """What was spent from a step on; None if no row is left of that time."""
    with store.reading() as connection:
        of_run = facts.c.run == require_run(connection, run).key
        columns = (
            func.count(),
            func.sum(summable(facts.c.tokens)),
            func.min(facts.c.time),
            func.max(facts.c.time),
        )
        later = (of_run, facts.c.optimizer == optimizer, facts.c.step >= step)
        count, tokens, started, ended = connection.execute(select(*columns).where(*later)).one()
    if not count:
        return None
    return Spent(steps=count, tokens=tokens or 0.0, started=started, ended=ended)


def step_ranges(rows: Iterable[tuple[int, float]]) -> list[tuple[int, int, float]]:
    """Neighbouring steps as ranges: first, last, and the time of the first."""
    ranges: list[tuple[int, int, float]] = []
    for step, time in rows:
        if ranges and ranges[-1][1] == step - 1:
            ranges[-1] = (ranges[-1][0], step, ranges[-1][2])
        else:
            ranges.append((step, step, time))
    return ranges
