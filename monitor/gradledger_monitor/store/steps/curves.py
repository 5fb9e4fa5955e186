"""The figures of a run as curves: short enough to draw, with every spike still in them.

A curve has about ``POINTS`` points at most. If there are more steps, a point stands for several
and has the lowest, the mean and the highest of their values. Every ``BUCKET_STEPS`` neighbouring
steps have a row that holds these three, so that a million steps are drawn from a few thousand rows.
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

from gradledger_monitor.evaluation.run_state import EvaluatedStep
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


# ---------------------------------------------------------------- written


def update_buckets(connection: Connection, run: int, judged: Iterable[EvaluatedStep]) -> None:
    """Bring the buckets up to date in which these steps lie, from the facts in the database."""
    touched: dict[int, list[int]] = {}
    for one in judged:
        touched.setdefault(one.optimizer, []).append(one.step // BUCKET_STEPS)
    for optimizer, numbers in touched.items():
        begin, end = min(numbers) * BUCKET_STEPS, (max(numbers) + 1) * BUCKET_STEPS
        of = {"of_run": run, "of_optimizer": optimizer, "from_step": begin, "to_step": end - 1}
        connection.execute(_GATHERING[connection.dialect.name], of)


def _gathering(words: str) -> dialects.Insert:
    """What brings buckets up to date: the figures of their steps, put together anew."""
    step = facts.c.step
    within = step.between(bindparam("from_step"), bindparam("to_step"))
    here = (facts.c.run == bindparam("of_run"), facts.c.optimizer == bindparam("of_optimizer"))
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
    for figure in CHART_METRICS:
        column = facts.c[figure]
        columns[f"{figure}_low"] = func.min(column)
        columns[f"{figure}_mean"] = mean_of(column)
        columns[f"{figure}_high"] = func.max(column)
        columns[f"{figure}_count"] = func.count(column)
    keys = ("run", "optimizer", "bucket")
    query = select(*columns.values()).where(*here, within).group_by(*(columns[key] for key in keys))
    statement = dialects.INSERT[words](buckets).from_select(list(columns), query)
    new = {name: statement.excluded[name] for name in columns if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=new)


_GATHERING = {words: _gathering(words) for words in dialects.KNOWN}  # made once, for every look


# ---------------------------------------------------------------- read


def version(store: Store, run: str) -> Version:
    """Another one after every batch, and after every judgement."""
    query = select(runs.c.key, runs.c.last_seen, runs.c.generation).where(runs.c.id == run)
    with store.reading() as connection:
        return tuple(connection.execute(query).first() or ())


def curves(
    store: Store,
    run: str,
    span: Span = Span(),
    figures: Sequence[str] = CHART_METRICS,
    points: int = POINTS,
) -> Curves:
    """Figures of judged steps, column by column, at most about ``points`` of each.

    ``first`` to ``step`` are the steps that a point stands for, ``steps`` how many of them there
    are, ``tokens_total`` the tokens up to there. A figure is the mean over them; where they are
    several, ``<figure>_low`` and ``<figure>_high`` are its extremes.
    """
    with store.reading() as connection:
        key = connection.scalar(select(runs.c.key).where(runs.c.id == run))
        first, last = _ends(connection, key, span)
        if key is None or first is None or last is None:
            return _columns([], figures, 0.0, several=False)
        size = -(-(last - first + 1) // points)
        query = _of_steps
        if size > BUCKET_STEPS // 2 or _given_up(
            connection, key, Span(span.optimizer, first, last)
        ):
            query, first = _of_buckets, first // BUCKET_STEPS * BUCKET_STEPS
            size = max(size, BUCKET_STEPS)
        within = Span(span.optimizer, first, last)
        rows = connection.execute(query(key, within, figures, size)).all()
        before = _tokens_before(connection, key, within)
    return _columns(rows, figures, before, several=size > 1)


def _ends(connection: Connection, run: int | None, span: Span) -> tuple[int | None, int | None]:
    """The first and last step; long ago they may be left in their buckets only."""
    c = buckets.c
    here = [c.run == run, c.optimizer == span.optimizer]
    here += [c.last >= span.first] if span.first is not None else []
    here += [c.first <= span.last] if span.last is not None else []
    # not by min and max, which would read every row
    first = connection.scalar(select(c.first).where(*here).order_by(c.bucket).limit(1))
    last = connection.scalar(select(c.last).where(*here).order_by(c.bucket.desc()).limit(1))
    if first is None or last is None:
        return None, None
    return max(first, span.first or first), min(last, span.last or last)


def evaluated_steps(store: Store, run: str) -> int:
    """How many steps of all optimizers were judged; those that ranks let pass were not."""
    query = select(func.sum(buckets.c.steps)).join(runs, runs.c.key == buckets.c.run)
    with store.reading() as connection:
        return int(connection.scalar(query.where(runs.c.id == run)) or 0)


def _given_up(connection: Connection, run: int, span: Span) -> bool:
    """Whether some of the steps are left in their buckets only."""
    assert span.first is not None and span.last is not None
    c = buckets.c
    within = c.bucket.between(span.first // BUCKET_STEPS, span.last // BUCKET_STEPS)
    whole = select(func.min(c.first), func.max(c.last), func.sum(c.steps))
    row = connection.execute(whole.where(c.run == run, c.optimizer == span.optimizer, within)).one()
    there = Span(span.optimizer, *row[:2])
    left = connection.scalar(select(func.count()).select_from(facts).where(*_here(run, there)))
    return (left or 0) < (row[2] or 0)


def _here(run: int | None, span: Span) -> list[ColumnElement[bool]]:
    here = [facts.c.run == run, facts.c.optimizer == span.optimizer]
    here += [facts.c.step >= span.first] if span.first is not None else []
    here += [facts.c.step <= span.last] if span.last is not None else []
    return here


def _of_steps(run: int, span: Span, figures: Sequence[str], size: int) -> Select[Any]:
    c, here = facts.c, _here(run, span)
    if size == 1:
        columns = [c.step, c.step, c.time, literal(1), func.coalesce(c.tokens, 0.0)]
        return select(*columns, *(c[f] for f in figures)).where(*here).order_by(c.step)
    point = c.step // size
    head = [func.min(c.step), func.max(c.step), func.max(c.time), func.count()]
    head.append(func.coalesce(func.sum(summable(c.tokens)), 0.0))
    parts = [end(c[f]) for f in figures for end in (func.min, mean_of, func.max)]
    return select(*head, *parts).where(*here).group_by(point).order_by(point)


def _of_buckets(run: int, span: Span, figures: Sequence[str], size: int) -> Select[Any]:
    c = buckets.c
    assert span.first is not None and span.last is not None
    within = c.bucket.between(span.first // BUCKET_STEPS, span.last // BUCKET_STEPS)
    point = c.bucket // -(-size // BUCKET_STEPS)
    head = [func.min(c.first), func.max(c.last), func.max(c.time), func.sum(c.steps)]
    head.append(func.sum(summable(c.tokens_sum)))
    parts = [part for figure in figures for part in _of_parts(figure)]
    query = select(*head, *parts).where(c.run == run, c.optimizer == span.optimizer, within)
    return query.group_by(point).order_by(point)


def _of_parts(figure: str) -> tuple[ColumnElement[Any], ...]:
    """Lowest, mean and highest of several buckets; each counts as often as it was measured."""
    low, mean, high = (buckets.c[f"{figure}_{part}"] for part in PARTS)
    measured = func.coalesce(buckets.c[f"{figure}_count"], buckets.c.steps)
    weight = cast(case((mean.is_not(None), measured)), Double)
    whole = func.sum(summable(mean) * weight) / func.nullif(func.sum(weight), 0.0)
    return func.min(low), whole, func.max(high)


def _tokens_before(connection: Connection, run: int, span: Span) -> float:
    """Tokens of the steps before a span."""
    assert span.first is not None
    whole = span.first // BUCKET_STEPS
    long_ago = select(func.sum(summable(buckets.c.tokens_sum))).where(
        buckets.c.run == run,
        buckets.c.optimizer == span.optimizer,
        buckets.c.bucket < whole,
    )
    lately = Span(span.optimizer, whole * BUCKET_STEPS, span.first - 1)
    rest = select(func.sum(summable(facts.c.tokens))).where(*_here(run, lately))
    return sum(connection.scalar(query) or 0.0 for query in (long_ago, rest))


def _columns(
    rows: Sequence[Any], figures: Sequence[str], before: float, *, several: bool
) -> Curves:
    names = ["first", "step", "time", "steps", "tokens_total"]
    for figure in figures:
        names += [f"{figure}_low", figure, f"{figure}_high"] if several else [figure]
    columns = map(list, zip(*rows, strict=True)) if rows else ([] for _ in names)
    made: Curves = dict(zip(names, columns, strict=True))
    made["tokens_total"] = list(accumulate(made["tokens_total"], initial=before))[1:]
    return made


def eval_curves(
    store: Store,
    run: str,
    span: Span = Span(),
    points: int = POINTS,
) -> dict[str, Curves]:
    """Evaluation metrics by name, over the ranks that told one; thinned likewise."""
    c = evals.c
    here = [c.run == select(runs.c.key).where(runs.c.id == run).scalar_subquery()]
    here += [c.step >= span.first] if span.first is not None else []
    here += [c.step <= span.last] if span.last is not None else []
    with store.reading() as connection:
        ends = connection.execute(select(func.min(c.step), func.max(c.step)).where(*here)).one()
        if ends[0] is None:
            return {}
        point = (c.step - ends[0]) // max(-(-(ends[1] - ends[0] + 1) // points), 1)
        query = select(
            c.name, func.max(c.step), func.min(c.value), mean_of(c.value), func.max(c.value)
        )
        rows = connection.execute(
            query.where(*here).group_by(c.name, point).order_by(c.name, point)
        )
        found: dict[str, Curves] = {}
        for name, *values in rows:
            made = found.setdefault(name, {"step": [], "low": [], "mean": [], "high": []})
            for column, value in zip(made.values(), values, strict=True):
                column.append(value)
    return found


def step_of_extreme(store: Store, run: str, span: Span, figure: str) -> int | None:
    """The step of a span at which a figure is largest; None where it was not measured."""
    column = facts.c[figure]
    with store.reading() as connection:
        key = connection.scalar(select(runs.c.key).where(runs.c.id == run))
        query = select(facts.c.step).where(*_here(key, span), column.is_not(None))
        return connection.scalar(query.order_by(column.desc(), facts.c.step).limit(1))


def neighbouring_steps(
    store: Store, run: str, optimizer: int, step: int
) -> tuple[int | None, int | None]:
    """The judged steps just before and after one; some in between may have been let pass."""
    with store.reading() as connection:
        key = connection.scalar(select(runs.c.key).where(runs.c.id == run))
        here = select(facts.c.step).where(facts.c.run == key, facts.c.optimizer == optimizer)
        before = here.where(facts.c.step < step).order_by(facts.c.step.desc())
        after = here.where(facts.c.step > step).order_by(facts.c.step)
        return connection.scalar(before.limit(1)), connection.scalar(after.limit(1))


def measured_figures(store: Store, run: str, optimizer: int) -> list[str]:
    """The figures that were measured at any step."""
    key = select(runs.c.key).where(runs.c.id == run).scalar_subquery()
    here = (buckets.c.run == key, buckets.c.optimizer == optimizer)
    highest = (func.max(buckets.c[f"{figure}_high"]) for figure in CHART_METRICS)
    with store.reading() as connection:
        row = connection.execute(select(*highest).where(*here)).one()
    return [figure for figure, value in zip(CHART_METRICS, row, strict=True) if value is not None]


def has_eval_metrics(store: Store, run: str) -> bool:
    """Whether the run told any evaluation metric."""
    key = select(runs.c.key).where(runs.c.id == run).scalar_subquery()
    with store.reading() as connection:
        return (
            connection.execute(select(evals.c.run).where(evals.c.run == key).limit(1)).first()
            is not None
        )
