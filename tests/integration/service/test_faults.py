"""What goes wrong around a service: full disks, databases that go away, ranks that fall silent."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path

from sqlalchemy import insert, select

from gradledger_monitor.ingest import decode
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import evaluation, get_run, list_runs
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.store.tables import facts, runs
from gradledger_monitor.workers.evaluator import Evaluator
from helpers import http
from helpers.batches import batch, eventually, fair_step, step
from helpers.postgres import running_postgres
from helpers.sending import Clock, judged, send
from helpers.service import Service, running_service

HEADERS = {"Content-Type": "application/x-ndjson"}


class Streaming(threading.Thread):
    """One rank that sends a step at a time, each again until it is taken."""

    def __init__(self, service: Service) -> None:
        super().__init__(daemon=True)
        self._service = service
        self.enough = threading.Event()
        self.sent = 0
        self.statuses: dict[int, int] = {}

    def run(self) -> None:
        with http.client(timeout=30) as client:
            while not self.enough.is_set():
                body = batch("streamed", [fair_step(self.sent + 1)])
                url = f"{self._service.url}/api/v1/records"
                status = client.post(url, content=body, headers=HEADERS).status_code
                self.statuses[status] = self.statuses.get(status, 0) + 1
                self.sent += status == 200
                time.sleep(0.002 if status == 200 else 0.05)

    def finish(self) -> int:
        """Stop; how many steps were acknowledged."""
        self.enough.set()
        self.join()
        return self.sent


def test_a_full_disk_refuses_batches_and_breaks_nothing(tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        assert service.post(batch("r", map(fair_step, range(1, 21)))).status_code == 200
        assert eventually(60, lambda: bool(service.get("/runs/r").json()["steps"] == 20))
        pid, limit = service.process.pid, resource.RLIMIT_FSIZE
        before = resource.prlimit(pid, limit, (4_096, resource.RLIM_INFINITY))
        large = batch("r", [fair_step(n, tokens=tuple(range(1, 200))) for n in range(21, 61)])
        answer = service.post(large)
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert service.get("/runs/r").json()["steps"] == 20
        resource.prlimit(pid, limit, before)
        assert service.post(large).json() == {"stored": 40, "duplicates": 0}
        assert eventually(60, lambda: bool(service.get("/runs/r").json()["steps"] == 60))


def test_a_database_that_restarts_or_drops_connections_loses_nothing() -> None:
    with running_postgres() as postgres:
        url = postgres.create()
        with running_service(url) as service:
            rank = Streaming(service)
            rank.start()
            assert eventually(60, lambda: rank.sent > 20)
            for _ in range(10):
                postgres.cut_connections()
                time.sleep(0.1)
            postgres.stop()
            time.sleep(1)
            postgres.start()
            reached = rank.sent
            assert eventually(60, lambda: rank.sent > reached + 20), rank.statuses
            sent = rank.finish()
            assert set(rank.statuses) == {200, 503}

            def found() -> int:
                return int(service.get("/runs/streamed").json()["steps"])

            assert eventually(60, lambda: found() == sent), (found(), sent)
            assert service.get("/runs/streamed/verdict").json()["verdict"] == "balanced"


def test_a_rank_that_stops_for_ever_is_named(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    send(store, map(fair_step, range(1, 6)), clock.time, rank=0, world_size=3)
    send(store, map(fair_step, range(1, 6)), clock.time, rank=2, world_size=3)
    clock.time += 31
    evaluator.evaluate_pending()
    said = evaluation(store, "r")
    assert judged(store) == 5 and said.verdict == "incomplete"
    reason = said.coverage["reduction.token_weights_unequal"]
    assert reason == "not_measured: no record of rank 1 arrived"


def test_a_rank_that_sends_garbage_spoils_only_its_own_records(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    for rank in (0, 1):
        send(store, map(fair_step, range(1, 4)), clock.time, rank=rank, world_size=2)
    spoiled = batch("r", [], rank=1, world_size=2) + b'{"type":"step","step":-4}\n\xff\x00\n[[[\n'
    stored = store_batch(store, decode.read(spoiled), clock.time)
    assert [refusal.line for refusal in stored.refused.listed] == [2, 3, 4]
    send(store, map(fair_step, range(4, 7)), clock.time, rank=0, world_size=2)
    clock.time += 31
    evaluator.evaluate_pending()
    with store.reading() as connection:
        heard = list(connection.scalars(select(facts.c.ranks).order_by(facts.c.step)))
    assert judged(store) == 6 and heard == [2, 2, 2, 1, 1, 1]


def test_two_runs_with_one_name_stay_two(store: Store) -> None:
    send(store, [fair_step(1)], run="first", name="same")
    send(store, [step(1), step(2)], run="second", name="same")
    Evaluator(store).evaluate_pending()
    assert {row.id: row.name for row in list_runs(store)} == {"first": "same", "second": "same"}
    assert evaluation(store, "first").verdict == "balanced"
    assert evaluation(store, "second").verdict == "broken"


def test_ten_thousand_runs_are_listed_and_the_new_ones_judged(store: Store) -> None:
    send(store, [fair_step(1)], run="r0")
    Evaluator(store).evaluate_pending()
    with store.writing() as connection:  # as many more like it
        row = dict(connection.execute(select(runs)).one()._mapping)
        more = [{**row, "key": row["key"] + n, "id": f"r{n}"} for n in range(1, 10_000)]
        connection.execute(insert(runs), more)
    for number in range(9_950, 10_000):
        send(store, [fair_step(1)], run=f"r{number}")
    began = time.process_time()
    assert len(Evaluator(store).evaluate_pending()) == 50
    assert len(list_runs(store, limit=50)) == 50
    assert len(list_runs(store, limit=50, search="r999")) == 11
    assert time.process_time() - began < 5


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
    found = {finding.rule: finding.steps for finding in evaluation(store, "wide").findings}
    assert found["reduction.token_weights_unequal"] == 2
