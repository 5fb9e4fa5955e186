"""The metrics of a run as curves: short enough to draw, with every spike still in them.

A curve has about ``POINTS`` points at most. If there are more steps, a point stands for several
and has the lowest, the mean and the highest of their values. Every ``BUCKET_STEPS`` neighbouring
steps have a row that holds these three, so that a million steps are drawn from a few thousand rows.

The arithmetic of means. A metric may be missing in some steps, so a bucket also has the number of
steps that measured it, and a point over several buckets weights each bucket by that number:

    steps            1    2    3    4  |  5    6    7    8
    loss             2.0  4.0  -    -  |  9.0  9.0  9.0  9.0
    bucket     mean  3.0, count 2      |  mean 9.0, count 4

    point = (3.0 * 2 + 9.0 * 4) / (2 + 4) = 7.0     the mean of the six values
    not     (3.0 * 4 + 9.0 * 4) / (4 + 4) = 6.0     which the numbers of steps would give

A bucket that was written before counts were stored has NULL there, and is weighted by its number of
steps. The lowest and the highest of a point are the extremes of its buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    case,
    cast,
    func,
    literal,
    select,
)
from sqlalchemy.types import Double

from gradledger_monitor.evaluation.evaluated_step import EvaluatedStep
from gradledger_monitor.model.chart_metrics import CHART_METRICS
from gradledger_monitor.store import dialects
from gradledger_monitor.store.averages import mean_of, summable
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import (
    BUCKET_STEPS,
    PARTS,
    buckets,
    evals,
    facts,
    runs,
)

POINTS = 1000

Curves = dict[str, list[Any]]
Version = tuple[float, ...]


@dataclass(frozen=True)
class Span:
    """Which steps of which optimizer; None is open."""

    optimizer: int = 0
    first: int | None = None
    last: int | None = None


# ---------------------------------------------------------------- writing


def update_buckets(connection: Connection, run: int, steps: Iterable[EvaluatedStep]) -> None:
    """Compute the buckets of these steps again, from the facts in the database."""
    touched: dict[int, list[int]] = {}
    for step in steps:
        touched.setdefault(step.optimizer, []).append(step.step // BUCKET_STEPS)
    for optimizer, numbers in touched.items():
        begin, end = min(numbers) * BUCKET_STEPS, (max(numbers) + 1) * BUCKET_STEPS
        span = {"of_run": run, "of_optimizer": optimizer, "from_step": begin, "to_step": end - 1}
        connection.execute(_BUCKET_UPDATES[connection.dialect.name], span)


def _bucket_update(dialect: str) -> dialects.Insert:
    """A statement that computes buckets from the facts of their steps and replaces them."""
    step = facts.c.step
    within = step.between(bindparam("from_step"), bindparam("to_step"))
    conditions = (
        facts.c.run == bindparam("of_run"),
        facts.c.optimizer == bindparam("of_optimizer"),
    )
    columns = {
        "run": facts.c.run,
        "optimizer": facts.c.optimizer,
        "bucket": step // BUCKET_STEPS,
        "first": func.min(step),
        "last": func.max(step),
        "time": func.max(facts.c.time),
        "steps": func.count(),
        "tokens_sum": func.coalesce(func.sum(summable(facts.c.tokens)), 0.0),
    }
    for metric in CHART_METRICS:
        column = facts.c[metric]
        columns[f"{metric}_low"] = func.min(column)
        columns[f"{metric}_mean"] = mean_of(column)
        columns[f"{metric}_high"] = func.max(column)
        columns[f"{metric}_count"] = func.count(column)
    keys = ("run", "optimizer", "bucket")
    query = (
        select(*columns.values())
        .where(*conditions, within)
        .group_by(*(columns[key] for key in keys))
    )
    statement = dialects.INSERT[dialect](buckets).from_select(list(columns), query)
    new = {name: statement.excluded[name] for name in columns if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=new)


_BUCKET_UPDATES = {name: _bucket_update(name) for name in dialects.SUPPORTED}  # compiled once


# ---------------------------------------------------------------- reading


def version(store: Store, run: str) -> Version:
    """A value that changes with every batch and every evaluation."""
    query = select(runs.c.key, runs.c.last_seen, runs.c.generation).where(runs.c.id == run)
    with store.reading() as connection:
        return tuple(connection.execute(query).first() or ())


def curves(
    store: Store,
    run: str,
    span: Span = Span(),
    metrics: Sequence[str] = CHART_METRICS,
    points: int = POINTS,
) -> Curves:
    """Metrics of evaluated steps as columns, of about ``points`` values at most.

    A point stands for the steps from ``first`` to ``step``; ``steps`` is their number, and
    ``tokens_total`` the tokens up to the last one. A metric is the mean over them. If a point
    stands for several steps, ``<metric>_low`` and ``<metric>_high`` are the extremes.
    """
    with store.reading() as connection:
        key = connection.scalar(select(runs.c.key).where(runs.c.id == run))
        first, last = _ends(connection, key, span)
        if key is None or first is None or last is None:
            return _columns([], metrics, 0.0, several=False)
        size = -(-(last - first + 1) // points)
        query = _of_steps
        if size > BUCKET_STEPS // 2 or _is_pruned(
            connection, key, Span(span.optimizer, first, last)
        ):
            query, first = _of_buckets, first // BUCKET_STEPS * BUCKET_STEPS
            size = max(size, BUCKET_STEPS)
        within = Span(span.optimizer, first, last)
        rows = connection.execute(query(key, within, metrics, size)).all()
        before = _tokens_before(connection, key, within)
    return _columns(rows, metrics, before, several=size > 1)


def _ends(connection: Connection, run: int | None, span: Span) -> tuple[int | None, int | None]:
    """The first and the last step of a span. Rows of old steps may be pruned; buckets are not."""
    c = buckets.c
    conditions = [c.run == run, c.optimizer == span.optimizer]
    conditions += [c.last >= span.first] if span.first is not None else []
    conditions += [c.first <= span.last] if span.last is not None else []
    # ordered by the key, because min and max would read every row
    first = connection.scalar(select(c.first).where(*conditions).order_by(c.bucket).limit(1))
    last = connection.scalar(select(c.last).where(*conditions).order_by(c.bucket.desc()).limit(1))
    if first is None or last is None:
        return None, None
    return max(first, span.first or first), min(last, span.last or last)


def evaluated_steps(store: Store, run: str) -> int:
    """How many steps of all optimizers were evaluated; steps that sampling skipped were not."""
    query = select(func.sum(buckets.c.steps)).join(runs, runs.c.key == buckets.c.run)
    with store.reading() as connection:
        return int(connection.scalar(query.where(runs.c.id == run)) or 0)


def _is_pruned(connection: Connection, run: int, span: Span) -> bool:
    """Whether the rows of some steps of the span are removed, so that only buckets have them."""
    assert span.first is not None and span.last is not None
    c = buckets.c
    within = c.bucket.between(span.first // BUCKET_STEPS, span.last // BUCKET_STEPS)
    whole = select(func.min(c.first), func.max(c.last), func.sum(c.steps))
    row = connection.execute(whole.where(c.run == run, c.optimizer == span.optimizer, within)).one()
    first, last, steps = row
    in_buckets = _in_span(run, Span(span.optimizer, first, last))
    count = connection.scalar(select(func.count()).select_from(facts).where(*in_buckets))
    return (count or 0) < (steps or 0)


def _in_span(run: int | None, span: Span) -> list[ColumnElement[bool]]:
    conditions = [facts.c.run == run, facts.c.optimizer == span.optimizer]
    conditions += [facts.c.step >= span.first] if span.first is not None else []
    conditions += [facts.c.step <= span.last] if span.last is not None else []
    return conditions


def _of_steps(run: int, span: Span, metrics: Sequence[str], size: int) -> Select[Any]:
    c, conditions = facts.c, _in_span(run, span)
    if size == 1:
        columns = [c.step, c.step, c.time, literal(1), func.coalesce(c.tokens, 0.0)]
        return select(*columns, *(c[f] for f in metrics)).where(*conditions).order_by(c.step)
    point = c.step // size
    head = [func.min(c.step), func.max(c.step), func.max(c.time), func.count()]
    head.append(func.coalesce(func.sum(summable(c.tokens)), 0.0))
    parts = [end(c[f]) for f in metrics for end in (func.min, mean_of, func.max)]
    return select(*head, *parts).where(*conditions).group_by(point).order_by(point)


def _of_buckets(run: int, span: Span, metrics: Sequence[str], size: int) -> Select[Any]:
    c = buckets.c
    assert span.first is not None and span.last is not None
    within = c.bucket.between(span.first // BUCKET_STEPS, span.last // BUCKET_STEPS)
    point = c.bucket // -(-size // BUCKET_STEPS)
    head = [func.min(c.first), func.max(c.last), func.max(c.time), func.sum(c.steps)]
    head.append(func.sum(summable(c.tokens_sum)))
    parts = [part for metric in metrics for part in _of_parts(metric)]
    query = select(*head, *parts).where(c.run == run, c.optimizer == span.optimizer, within)
    return query.group_by(point).order_by(point)


def _of_parts(metric: str) -> tuple[ColumnElement[Any], ...]:
    """Lowest, mean and highest of several buckets; see the arithmetic above."""
    low, mean, high = (buckets.c[f"{metric}_{part}"] for part in PARTS)
    count = func.coalesce(buckets.c[f"{metric}_count"], buckets.c.steps)
    weight = cast(case((mean.is_not(None), count)), Double)
    weighted_mean = func.sum(summable(mean) * weight) / func.nullif(func.sum(weight), 0.0)
    return func.min(low), weighted_mean, func.max(high)


def _tokens_before(connection: Connection, run: int, span: Span) -> float:
    """The tokens of the steps before a span: of whole buckets, then of the steps after them."""
    assert span.first is not None
    first_bucket = span.first // BUCKET_STEPS
    of_buckets = select(func.sum(summable(buckets.c.tokens_sum))).where(
        buckets.c.run == run,
        buckets.c.optimizer == span.optimizer,
        buckets.c.bucket < first_bucket,
    )
    rest = Span(span.optimizer, first_bucket * BUCKET_STEPS, span.first - 1)
    of_steps = select(func.sum(summable(facts.c.tokens))).where(*_in_span(run, rest))
    return sum(connection.scalar(query) or 0.0 for query in (of_buckets, of_steps))


def _columns(
    rows: Sequence[Any], metrics: Sequence[str], before: float, *, several: bool
) -> Curves:
    names = ["first", "step", "time", "steps", "tokens_total"]
    for metric in metrics:
        names += [f"{metric}_low", metric, f"{metric}_high"] if several else [metric]
    columns = map(list, zip(*rows, strict=True)) if rows else ([] for _ in names)
    drawn: Curves = dict(zip(names, columns, strict=True))
    drawn["tokens_total"] = list(accumulate(drawn["tokens_total"], initial=before))[1:]
    return drawn


def eval_curves(
    store: Store,
    run: str,
    span: Span = Span(),
    points: int = POINTS,
) -> dict[str, Curves]:
    """Evaluation metrics by name, over the ranks that sent them; thinned likewise."""
    c = evals.c
    conditions = [c.run == select(runs.c.key).where(runs.c.id == run).scalar_subquery()]
    conditions += [c.step >= span.first] if span.first is not None else []
    conditions += [c.step <= span.last] if span.last is not None else []
    with store.reading() as connection:
        ends = connection.execute(
            select(func.min(c.step), func.max(c.step)).where(*conditions)
        ).one()
        if ends[0] is None:
            return {}
        point = (c.step - ends[0]) // max(-(-(ends[1] - ends[0] + 1) // points), 1)
        query = select(
            c.name, func.max(c.step), func.min(c.value), mean_of(c.value), func.max(c.value)
        )
        rows = connection.execute(
            query.where(*conditions).group_by(c.name, point).order_by(c.name, point)
        )
        by_name: dict[str, Curves] = {}
        for name, *values in rows:
            curve = by_name.setdefault(name, {"step": [], "low": [], "mean": [], "high": []})
            for column, value in zip(curve.values(), values, strict=True):
                column.append(value)
    return by_name


def step_of_extreme(store: Store, run: str, span: Span, metric: str) -> int | None:
    """The step of a span at which a metric is largest; None if it was not measured."""
    column = facts.c[metric]
    with store.reading() as connection:
        key = connection.scalar(select(runs.c.key).where(runs.c.id == run))
        query = select(facts.c.step).where(*_in_span(key, span), column.is_not(None))
        return connection.scalar(query.order_by(column.desc(), facts.c.step).limit(1))


def neighbouring_steps(
    store: Store, run: str, optimizer: int, step: int
) -> tuple[int | None, int | None]:
    """The evaluated steps just before and after one; steps in between may have been skipped."""
    with store.reading() as connection:
        key = connection.scalar(select(runs.c.key).where(runs.c.id == run))
        steps = select(facts.c.step).where(facts.c.run == key, facts.c.optimizer == optimizer)
        before = steps.where(facts.c.step < step).order_by(facts.c.step.desc())
        after = steps.where(facts.c.step > step).order_by(facts.c.step)
        return connection.scalar(before.limit(1)), connection.scalar(after.limit(1))


def measured_metrics(store: Store, run: str, optimizer: int) -> list[str]:
    """The metrics that were measured at any step."""
    key = select(runs.c.key).where(runs.c.id == run).scalar_subquery()
    conditions = (buckets.c.run == key, buckets.c.optimizer == optimizer)
    highest = (func.max(buckets.c[f"{metric}_high"]) for metric in CHART_METRICS)
    with store.reading() as connection:
        row = connection.execute(select(*highest).where(*conditions)).one()
    return [metric for metric, value in zip(CHART_METRICS, row, strict=True) if value is not None]


def has_eval_metrics(store: Store, run: str) -> bool:
    """Whether the run sent any evaluation metric."""
    key = select(runs.c.key).where(runs.c.id == run).scalar_subquery()
    with store.reading() as connection:
        return (
            connection.execute(select(evals.c.run).where(evals.c.run == key).limit(1)).first()
            is not None
        )
