"""How step records lie in the database shows nowhere: whatever comes in whatever pieces."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Row, select

from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store import tables
from gradledger_monitor.store.admin.retention import RetentionPolicy
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation.pending import next_steps, run_status
from gradledger_monitor.store.packing import unpack_records
from gradledger_monitor.store.runs.queries import step_records
from gradledger_monitor.store.steps import chunks
from gradledger_monitor.workers.evaluator import Evaluator
from gradledger_monitor.workers.retention import run_retention
from helpers.batches import fair_step, step
from helpers.examples import examples
from helpers.sending import Clock, judged, send

runs = (f"run-{number}" for number in itertools.count())
few_steps = st.lists(st.integers(1, 30), min_size=1, max_size=12)
some_batches = st.lists(st.tuples(st.integers(0, 2), few_steps), min_size=1, max_size=8)
often = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def lying(store: Store, run: str = "r") -> list[Row[tuple[object, ...]]]:
    """The chunks of a run, by rank and step."""
    c = tables.chunks.c
    query = select(tables.chunks).join(tables.runs, tables.runs.c.key == c.run)
    query = query.where(tables.runs.c.id == run).order_by(c.optimizer, c.rank, c.last)
    with store.reading() as connection:
        return list(connection.execute(query))


def spans(store: Store, run: str = "r") -> list[tuple[int, int]]:
    """The first and last step of each chunk."""
    return [(chunk.first, chunk.last) for chunk in lying(store, run)]


def in_turns(store: Store, run: str, after: int = 0) -> list[tuple[int, list[int], float]]:
    """What the judge is given, turn by turn: steps, their ranks, when the first of them came."""
    at, more = run_status(store, run), True
    found: list[tuple[int, list[int], float]] = []
    while more:
        arrived, more = next_steps(store, at, 0, after)
        assert arrived or not more
        found += [(one.step, list(one.records), one.received) for one in arrived]
        after = found[-1][0] if found else after
    return found


@often
@given(some_batches, st.integers(1, 6))
def test_records_come_out_as_they_came_in_however_they_were_batched(
    store: Store, sent: list[tuple[int, list[int]]], enough: int
) -> None:
    run = next(runs)
    arrived: dict[tuple[int, int], float] = {}  # by step and rank
    for now, (rank, steps) in enumerate(sent):
        new = set(steps) - {n for n, r in arrived if r == rank}
        stored = send(store, map(step, steps), float(now), run, rank=rank, world_size=3)
        assert (stored.stored, stored.duplicates) == (len(new), len(steps) - len(new))
        assert stored.refused.count == 0
        arrived |= {(n, rank): float(now) for n in new}
    apart = lying(store, run)
    for one, other in itertools.pairwise(apart):
        assert one.rank < other.rank or one.last < other.first
    held = {(n, c.rank): c.received for c in apart for n in unpack_records(c.records)}
    assert held == arrived and sum(chunk.record_count for chunk in apart) == len(arrived)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradledger_monitor.store.evaluation.pending.RECORDS_AT_ONCE", enough)
        for after in (0, 7, 30):
            later = sorted({n for n, _ in arrived if n > after})
            by_step = {n: {r: at for (m, r), at in arrived.items() if m == n} for n in later}
            wanted = [(n, sorted(by), min(by.values())) for n, by in by_step.items()]
            assert in_turns(store, run, after) == wanted


@often
@given(some_batches, st.integers(1, 30), st.integers(0, 30))
def test_what_is_removed_is_gone_and_nothing_else(
    store: Store, sent: list[tuple[int, list[int]]], first: int, length: int
) -> None:
    run, last = next(runs), first + length
    for rank, steps in sent:
        send(store, map(step, steps), run=run, rank=rank, world_size=3)
    before = {(n, c.rank) for c in lying(store, run) for n in unpack_records(c.records)}
    key = run_status(store, run).key
    with store.writing() as connection:
        within = {one for one in before if first <= one[0] <= last}
        assert chunks.count(connection, key, 0, first - 1, last) == len(within)
        assert chunks.remove(connection, key, 0, first, last) == len(within)
        assert chunks.count(connection, key, 0, first - 1, last) == 0
        left = sorted({n for n, _ in before - within})
        assert chunks.next_step(connection, key, 0, 0) == min(left, default=None)
        assert chunks.last_step(connection, key, 0) == max(left, default=None)
        until = [n for n in left if n <= 15]
        assert chunks.last_step(connection, key, 0, 15) == max(until, default=None)
    after = {(n, c.rank) for c in lying(store, run) for n in unpack_records(c.records)}
    assert after == before - within


def test_records_in_other_batches_after_a_lost_response_are_stored_once(store: Store) -> None:
    send(store, map(step, range(1, 11)))
    again = send(store, map(step, range(6, 16)))
    assert (again.stored, again.duplicates) == (5, 5)
    assert spans(store) == [(1, 10), (11, 15)]
    Evaluator(store).evaluate_pending()
    assert judged(store) == 15


def test_another_content_inside_a_chunk_is_refused_with_its_line(store: Store) -> None:
    send(store, map(step, range(1, 11)))
    said = [step(4), replace(step(5), norm=7.0), step(11), replace(step(11), norm=7.0), step(11)]
    mixed = send(store, said)
    assert (mixed.stored, mixed.duplicates) == (1, 2)
    assert [(refusal.line, refusal.field) for refusal in mixed.refused.listed] == [
        (3, "$.step"),
        (5, "$.step"),
    ]
    assert "step 5 of optimizer 0 from rank 0" in mixed.refused.listed[0].reason
    assert step_records(store, "r", 0, 5)[0].norm == step_records(store, "r", 0, 11)[0].norm == 1.0


def test_what_falls_between_the_steps_of_a_chunk_parts_it_and_keeps_both_times(
    store: Store,
) -> None:
    send(store, map(step, (9, 1, 3)), now=5.0)
    assert spans(store) == [(1, 9)]
    send(store, map(step, (4, 12, 5)), now=6.0)
    assert spans(store) == [(1, 3), (4, 5), (9, 9), (12, 12)]
    arrived = [(1, 5.0), (3, 5.0), (4, 6.0), (5, 6.0), (9, 5.0), (12, 6.0)]
    assert in_turns(store, "r") == [(number, [0], when) for number, when in arrived]


def test_two_processes_that_are_sent_the_same_steps_at_once_store_each_once(store: Store) -> None:
    other = Store(store.engine.url.render_as_string())  # the same database, locks of its own
    chance = random.Random(1)
    sent = [chance.sample(range(1, 101), 20) for _ in range(40)]
    with ThreadPoolExecutor(2) as pool:
        through = itertools.cycle((store, other))
        stored = list(pool.map(lambda to, steps: send(to, map(step, steps)), through, sent))
    other.close()
    steps = [number for number, _, _ in in_turns(store, "r")]
    assert steps == sorted(set(itertools.chain(*sent)))
    assert sum(one.stored for one in stored) == len(steps)
    assert sum(one.stored + one.duplicates for one in stored) == 40 * 20


def test_optimizers_and_ranks_lie_apart(store: Store) -> None:
    both = [step(n, o) for n in (1, 2) for o in (0, 1)]
    for rank in (0, 1):
        assert send(store, both, rank=rank, world_size=2, optimizers=["a", "b"]).stored == 4
    assert spans(store) == [(1, 2)] * 4
    assert send(store, both, rank=1, world_size=2).duplicates == 4


def test_a_chunk_of_many_ranks_has_few_steps_so_that_reading_one_is_bounded(
    store: Store,
) -> None:
    send(store, map(step, range(1, 31)), rank=7, world_size=1_024)
    assert max(chunk.record_count for chunk in lying(store)) == 8
    assert sum(chunk.record_count for chunk in lying(store)) == 30
    assert (chunks.longest(1), chunks.longest(65_536)) == (512, 1)


def test_a_rank_that_is_far_behind_delays_only_its_own_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradledger_monitor.store.evaluation.pending.RECORDS_AT_ONCE", 10)
    send(store, map(fair_step, range(1, 201)), rank=0, world_size=2)
    evaluator = Evaluator(store, now=Clock())
    for first in range(1, 201, 3):
        end = min(first + 3, 201)
        send(store, map(fair_step, range(first, end)), rank=1, world_size=2)
        evaluator.evaluate_pending()
        assert judged(store) == end - 1


def test_of_a_batch_with_pruned_steps_the_others_are_stored(store: Store) -> None:
    send(store, map(fair_step, range(1, 101)))
    Evaluator(store).evaluate_pending()
    assert run_retention(store, RetentionPolicy(1e-9, 0), RuleOverrides()).records == 100
    send(store, map(fair_step, range(111, 121)))
    late = send(store, map(fair_step, range(91, 116)))
    assert (late.stored, late.duplicates, late.refused.count) == (10, 5, 10)
    assert late.refused.listed[0].line == 2 and "comes too late" in late.refused.listed[0].reason
    assert spans(store) == [(101, 110), (111, 120)]
    Evaluator(store).evaluate_pending()
    assert judged(store) == 120


def test_a_chunk_around_a_finding_is_cut_down_to_it(store: Store) -> None:
    send(store, [step(n) if n in (40, 300) else fair_step(n) for n in range(1, 401)])
    Evaluator(store).evaluate_pending()
    removed = run_retention(store, RetentionPolicy(1e-9, 0), RuleOverrides())
    assert spans(store) == [(35, 45), (295, 305)]
    assert removed.records == 400 - 11 - 11
    assert run_retention(store, RetentionPolicy(1e-9, 0), RuleOverrides()).records == 0
    assert spans(store) == [(35, 45), (295, 305)]
