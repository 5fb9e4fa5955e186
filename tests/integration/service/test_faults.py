"""Faults around a service: full disks, databases that restart, ranks that send nothing."""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event, insert, select

from gradledger_monitor.ingest import decode
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import evaluation, get_run, list_runs
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.store.tables import facts, runs
from gradledger_monitor.workers.evaluator import Evaluator
from helpers import http
from helpers.batches import batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.postgres import running_postgres
from helpers.sending import Clock, evaluate_pending, judged, send
from helpers.service import Service, running_service

HEADERS = {"Content-Type": "application/x-ndjson"}


class Streaming(threading.Thread):
    """One rank that sends one step at a time, each again until it is accepted."""

    def __init__(self, service: Service) -> None:
        super().__init__(daemon=True)
        self._service = service
        self.enough = threading.Event()
        self.sent = 0
        self.statuses: Counter[int] = Counter()

    def run(self) -> None:
        with http.client() as client:
            while not self.enough.is_set():
                body = batch("streamed", [fair_step(self.sent + 1)])
                url = f"{self._service.url}/api/v1/records"
                status = client.post(url, content=body, headers=HEADERS).status_code
                self.statuses[status] += 1
                self.sent += status == 200

    def until(self, status: int, count: int) -> None:
        """Wait for more responses with a status."""
        enough = self.statuses[status] + count
        assert eventually(HANGS, lambda: self.statuses[status] >= enough), self.statuses

    def finish(self) -> int:
        """Stop; how many steps were acknowledged."""
        self.enough.set()
        self.join()
        return self.sent


def evaluated(service: Service, run: str, steps: int) -> Callable[[], bool]:
    """Checks whether this many steps of a run are evaluated."""
    return lambda: bool(service.get(f"/runs/{run}").json()["steps"] == steps)


def test_a_full_disk_refuses_batches_and_breaks_nothing(tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        assert service.post(batch("r", map(fair_step, range(1, 21)))).status_code == 200
        assert eventually(HANGS, evaluated(service, "r", 20))
        pid, limit = service.process.pid, resource.RLIMIT_FSIZE
        before = resource.prlimit(pid, limit, (4_096, resource.RLIM_INFINITY))
        large = batch("r", [fair_step(n, tokens=tuple(range(1, 200))) for n in range(21, 61)])
        answer = service.post(large)
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert service.get("/runs/r").json()["steps"] == 20
        resource.prlimit(pid, limit, before)
        assert service.post(large).json() == {"stored": 40, "duplicates": 0}
        assert eventually(HANGS, evaluated(service, "r", 60))


def test_a_database_that_restarts_or_drops_connections_loses_nothing() -> None:
    with running_postgres() as postgres, running_service(postgres.create()) as service:
        rank = Streaming(service)
        rank.start()
        for _ in range(10):
            rank.until(200, 5)
            postgres.cut_connections()
        postgres.stop()
        rank.until(503, 1)
        postgres.start()
        rank.until(200, 20)
        steps = rank.finish()
        assert set(rank.statuses) == {200, 503}
        assert eventually(HANGS, evaluated(service, "streamed", steps))
        assert service.get("/runs/streamed/verdict").json()["verdict"] == "balanced"


def test_a_rank_that_sends_nothing_is_named(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    send(store, map(fair_step, range(1, 6)), clock.time, rank=0, world_size=3)
    send(store, map(fair_step, range(1, 6)), clock.time, rank=2, world_size=3)
    clock.time += 31
    evaluator.evaluate_pending()
    result = evaluation(store, "r")
    assert judged(store) == 5 and result.verdict == "incomplete"
    assert result.coverage["reduction.wrong_denominator"] == (
        "not_measured: no record of rank 1 arrived"
    )
    assert result.coverage["reduction.token_weights_unequal"] == (
        "ok: equal weights: cross entropy; no record of rank 1 arrived"
    )


def test_a_step_waits_five_seconds_for_a_rank_that_never_sent(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    send(store, [fair_step(1)], clock.time, rank=0, world_size=2)
    evaluator.evaluate_pending()
    clock.time += 4
    assert evaluator.evaluate_pending() == [] and judged(store) == 0
    clock.time += 2
    assert evaluator.evaluate_pending() == ["r"] and judged(store) == 1


def test_a_step_waits_the_whole_rank_timeout_for_a_rank_that_sent_before(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    for rank in (0, 1):
        send(store, [fair_step(1)], clock.time, rank=rank, world_size=2)
    send(store, [fair_step(2)], clock.time, rank=0, world_size=2)
    evaluator.evaluate_pending()
    clock.time += 29
    assert evaluator.evaluate_pending() == [] and judged(store) == 1
    clock.time += 2
    assert evaluator.evaluate_pending() == ["r"] and judged(store) == 2


def test_what_the_ranks_that_report_prove_is_found_without_the_absent_one(store: Store) -> None:
    for rank in (0, 2):
        send(store, map(step, range(1, 4)), rank=rank, world_size=3)
    evaluate_pending(store, 0)
    result = evaluation(store, "r")
    (finding,) = result.findings
    assert (result.verdict, finding.rule) == ("broken", "reduction.token_weights_unequal")
    assert "This holds for the ranks that reported: no record of rank 1 arrived." in finding.summary


def test_a_rank_that_reports_late_completes_what_was_evaluated_without_it(store: Store) -> None:
    for rank in (0, 1):
        send(store, [fair_step(1)], rank=rank, world_size=2)
        evaluate_pending(store, 0)
        verdict = evaluation(store, "r").verdict
        assert (verdict == "incomplete") == (rank == 0)


def test_a_rank_that_sends_invalid_records_affects_no_other_rank(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    for rank in (0, 1):
        send(store, map(fair_step, range(1, 4)), clock.time, rank=rank, world_size=2)
    invalid = batch("r", [], rank=1, world_size=2) + b'{"type":"step","step":-4}\n\xff\x00\n[[[\n'
    stored = store_batch(store, decode.read(invalid), clock.time)
    assert [refusal.line for refusal in stored.refused.listed] == [2, 3, 4]
    send(store, map(fair_step, range(4, 7)), clock.time, rank=0, world_size=2)
    clock.time += 31
    evaluator.evaluate_pending()
    with store.reading() as connection:
        ranks = list(connection.scalars(select(facts.c.ranks).order_by(facts.c.step)))
    assert judged(store) == 6 and ranks == [2, 2, 2, 1, 1, 1]


def test_two_runs_with_one_name_are_separate(store: Store) -> None:
    send(store, [fair_step(1)], run="first", name="same")
    send(store, [step(1), step(2)], run="second", name="same")
    Evaluator(store).evaluate_pending()
    assert {row.id: row.name for row in list_runs(store)} == {"first": "same", "second": "same"}
    assert evaluation(store, "first").verdict == "balanced"
    assert evaluation(store, "second").verdict == "broken"


def test_of_ten_thousand_runs_only_the_pending_ones_are_read(store: Store) -> None:
    send(store, [fair_step(1)], run="r0")
    Evaluator(store).evaluate_pending()
    statements = [_statements_for_twenty_runs(store, "a")]
    with store.writing() as connection:  # more runs like the first
        row = dict(connection.execute(select(runs).where(runs.c.id == "r0")).one()._mapping)
        del row["key"]
        more = [{**row, "id": f"r{n}"} for n in range(100, 10_100)]
        connection.execute(insert(runs), more)
    statements.append(_statements_for_twenty_runs(store, "b"))
    assert statements[0] == statements[1]
    assert len(list_runs(store, limit=50, search="r1009")) == 11


def _statements_for_twenty_runs(store: Store, name: str) -> int:
    """The number of SQL statements that evaluate and list twenty new runs."""
    for number in range(20):
        send(store, [fair_step(1)], run=f"{name}{number}")
    statements: list[str] = []

    def count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(store.engine, "before_cursor_execute", count)
    assert len(Evaluator(store).evaluate_pending()) == 20
    assert len(list_runs(store, limit=20)) == 20
    event.remove(store.engine, "before_cursor_execute", count)
    return len(statements)


def test_a_thousand_ranks_are_one_run(store: Store) -> None:
    ranks = 1_024
    bodies = [
        batch("wide", [step(n, sync="averaged") for n in (1, 2)], rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    for begin in range(0, ranks, 64):
        store_batch(store, decode.read(b"".join(bodies[begin : begin + 64])), 10_000.0)
    Evaluator(store).evaluate_pending()
    row = get_run(store, "wide")
    assert row is not None and (row.steps, row.world_size) == (2, ranks)
    assert row.tokens == 2 * ranks * 40
    steps = {finding.rule: finding.steps for finding in evaluation(store, "wide").findings}
    assert steps["reduction.token_weights_unequal"] == 2
