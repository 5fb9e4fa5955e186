"""Curves: short enough to draw, true to every spike, and the same however they were gathered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
from sqlalchemy import delete, insert, select, update

from gradledger.records import EvalRecord, MicroBatch, StepRecord
from gradledger_monitor.evaluation.evaluated_step import EvaluatedStep
from gradledger_monitor.ingest import decode
from gradledger_monitor.store import tables
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps import curves, patterns
from gradledger_monitor.store.steps.curves import Span
from gradledger_monitor.store.steps.ingest import store_batch
from helpers.batches import batch, step
from helpers.sending import evaluate_pending

LENGTH = 12_001  # so that no point stands for a single step without a loss
POINTS = 500
BUCKET_STEPS = tables.BUCKET_STEPS
WHOLE = Span()


def norm(number: int) -> float:
    """Waves, one spike and one dip."""
    return {7_417: 1e6, 3_183: -1e6}.get(number, 1.0 + math.sin(number) / 10)


def loss(number: int) -> float | None:
    """Missing at every third step."""
    return 99.0 if number == 10_346 else 3.0 if number % 3 else None


@pytest.fixture(scope="module")
def long_run(module_databases: Callable[..., str], migrated: str) -> Iterator[Store]:
    """A long run, evaluated in parts; tests only read it."""
    store = Store(module_databases(migrated))
    store_batch(store, decode.read(batch("long", [])), 1.0)
    common = {"run": 1, "optimizer": 0, "ranks": 1, "tokens": 10.0}
    rows = [
        {**common, "step": n, "time": float(n), "norm": norm(n), "loss_reported": loss(n)}
        for n in range(1, LENGTH + 1)
    ]
    with store.writing() as connection:
        connection.execute(insert(tables.facts), rows)
        for start in range(1, LENGTH + 1, 3000):
            part = range(start, min(start + 3000, LENGTH + 1))
            curves.update_buckets(
                connection, 1, [EvaluatedStep(0, n, float(n), 1, {}) for n in part]
            )
    yield store
    store.close()


def drawn(store: Store, span: Span = WHOLE, points: int = POINTS) -> curves.Curves:
    """What a chart gets."""
    return curves.curves(store, "long", span, points=points)


def test_spikes_survive_however_few_points_are_drawn(long_run: Store) -> None:
    for points in (100, 500, 5_000):
        thinned = drawn(long_run, points=points)
        assert len(thinned["step"]) <= points + 1
        assert (max(thinned["norm_high"]), min(thinned["norm_low"])) == (1e6, -1e6)
        assert max(thinned["loss_reported_high"]) == 99.0


@pytest.mark.parametrize("points", [150, 5_000])
def test_a_point_has_the_extremes_and_the_mean_of_exactly_its_steps(
    long_run: Store, points: int
) -> None:
    thinned = drawn(long_run, points=points)
    ends = list(zip(thinned["first"], thinned["step"], thinned["steps"], strict=True))
    assert (ends[0][0], ends[-1][1]) == (1, LENGTH)
    for at, (first, last, steps) in enumerate(ends):
        assert steps == last - first + 1
        assert at == 0 or first == ends[at - 1][1] + 1
        covered = range(first, last + 1)
        for name, figure in (("norm", norm), ("loss_reported", loss)):
            measured = [value for n in covered if (value := figure(n)) is not None]
            assert thinned[f"{name}_low"][at] == min(measured)
            assert thinned[f"{name}_high"][at] == max(measured)
            assert thinned[name][at] == pytest.approx(
                math.fsum(measured) / len(measured), rel=1e-12
            )


def rarely(number: int) -> float | None:
    """Measured at every step of the first 64, and then at one of 64: 9 there, and 1 before."""
    return 1.0 if number < BUCKET_STEPS else 9.0 if number % BUCKET_STEPS == 0 else None


@pytest.mark.parametrize("points", [1, 7, 100])
def test_a_mean_counts_each_bucket_as_often_as_the_figure_was_measured(
    store: Store, points: int
) -> None:
    store_batch(store, decode.read(batch("long", [])), 1.0)
    steps = range(1, 20 * BUCKET_STEPS)
    write_facts(store, [{"step": n, "loss_token": rarely(n)} for n in steps])
    drawn = curves.curves(store, "long", points=points)
    ends = zip(drawn["first"], drawn["step"], drawn["loss_token"], strict=True)
    for first, last, mean in ends:
        measured = [value for n in range(first, last + 1) if (value := rarely(n)) is not None]
        assert (mean is None) == (not measured)
        assert not measured or mean == pytest.approx(math.fsum(measured) / len(measured), rel=1e-12)
    everywhere = [value for n in steps if (value := rarely(n)) is not None]
    if points == 1:
        assert drawn["loss_token"] == pytest.approx([math.fsum(everywhere) / len(everywhere)])
        assert drawn["loss_token"][0] < 3  # weighted by all steps, it was 8.6


def write_facts(store: Store, rows: Sequence[dict[str, object]]) -> None:
    """Rows of judged steps, and their buckets."""
    common = {"run": 1, "optimizer": 0, "ranks": 1, "time": 1.0}
    with store.writing() as connection:
        connection.execute(insert(tables.facts), [{**common, **row} for row in rows])
        numbers = [int(str(row["step"])) for row in rows]
        curves.update_buckets(connection, 1, [EvaluatedStep(0, n, 1.0, 1, {}) for n in numbers])


def test_a_bucket_without_counts_is_weighted_by_all_of_its_steps(store: Store) -> None:
    store_batch(store, decode.read(batch("long", [])), 1.0)
    write_facts(store, [{"step": n, "loss_token": rarely(n)} for n in range(1, 4 * BUCKET_STEPS)])
    before = counts(store)
    assert before == [BUCKET_STEPS - 1, 1, 1, 1]
    old = tables.buckets.c.bucket == 3
    with store.writing() as connection:
        connection.execute(update(tables.buckets).where(old).values(loss_token_count=None))
        connection.execute(delete(tables.facts).where(tables.facts.c.step >= 3 * BUCKET_STEPS))
    assert counts(store) == [BUCKET_STEPS - 1, 1, 1, None]
    sums = (BUCKET_STEPS - 1) * 1.0 + 9.0 + 9.0 + 9.0 * BUCKET_STEPS
    mean = sums / (BUCKET_STEPS - 1 + 1 + 1 + BUCKET_STEPS)
    assert curves.curves(store, "long", points=1)["loss_token"] == pytest.approx([mean])


def counts(store: Store) -> list[int | None]:
    """In how many steps of each bucket the figure was measured."""
    c = tables.buckets.c
    with store.reading() as connection:
        return list(connection.scalars(select(c.loss_token_count).order_by(c.bucket)))


def test_a_figure_that_is_never_missing_has_an_exact_mean(long_run: Store) -> None:
    thinned = drawn(long_run, points=150)
    first, last = thinned["first"][7], thinned["step"][7]
    exact = sum(map(norm, range(first, last + 1))) / (last - first + 1)
    assert thinned["norm"][7] == pytest.approx(exact)


def test_a_short_span_is_not_thinned(long_run: Store) -> None:
    part = drawn(long_run, Span(0, 100, 199))
    assert part["step"] == list(range(100, 200))
    assert part["norm"] == [norm(n) for n in range(100, 200)]
    assert "norm_low" not in part
    assert drawn(long_run, Span(1))["step"] == []


@pytest.mark.parametrize("first", [1, 65, 9_001])
def test_tokens_are_counted_from_the_beginning_of_the_run(long_run: Store, first: int) -> None:
    part = drawn(long_run, Span(0, first, None))
    assert part["tokens_total"] == [10.0 * last for last in part["step"]]


def test_a_run_evaluated_in_parts_has_the_curves_of_one_evaluated_at_once(
    store: Store,
) -> None:
    for first in range(1, 200, 7):
        steps = map(step, range(first, min(first + 7, 200)))
        store_batch(store, decode.read(batch("slow", steps)), 1.0)
        evaluate_pending(store)
    store_batch(store, decode.read(batch("fast", map(step, range(1, 200)))), 1.0)
    evaluate_pending(store)
    slow, fast = (_buckets(store, run) for run in (1, 2))
    assert slow == fast
    assert [row[0] for row in slow] == [0, 1, 2, 3]


def _buckets(store: Store, run: int) -> Sequence[tuple[object, ...]]:
    columns = [column for column in tables.buckets.c if column.name != "run"][1:]
    query = tables.buckets.select().with_only_columns(*columns).order_by(columns[0])
    with store.reading() as connection:
        result = connection.execute(query.where(tables.buckets.c.run == run))
        return [tuple(row) for row in result]


def test_evaluations_are_drawn_by_name(store: Store) -> None:
    sent_records = [
        EvalRecord(n, float(n), {"loss": 3.0 / n, "accuracy": 1 - 1 / n}) for n in (10, 20)
    ]
    store_batch(store, decode.read(batch("r", sent_records)), 1.0)
    result = curves.eval_curves(store, "r")
    assert list(result) == ["accuracy", "loss"]
    assert (result["loss"]["step"], result["loss"]["mean"]) == ([10, 20], [0.3, 0.15])
    assert curves.eval_curves(store, "r", Span(0, 11, 20))["loss"]["step"] == [20]


def test_patterns_of_collectives_are_of_evenly_spread_steps(store: Store) -> None:
    records = [
        StepRecord(0, n, float(n), [MicroBatch(collectives=c) for c in (0, 0, n)])
        for n in range(1, 101)
    ]
    store_batch(store, decode.read(batch("r", records)), 1.0)
    result = patterns.collectives(store, "r", Span(0), 5)
    assert result.step == [1, 25, 50, 75, 100]
    assert result.collectives == [[0, 0, n] for n in result.step]
    assert patterns.collectives(store, "r", Span(1), 5).step == []


def test_the_largest_of_a_span_leads_to_its_step(long_run: Store) -> None:
    assert curves.step_of_extreme(long_run, "long", Span(0, 7_000, 8_000), "norm") == 7_417
    assert curves.step_of_extreme(long_run, "long", Span(0, 7_000, 8_000), "scale") is None
