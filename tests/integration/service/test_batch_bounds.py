"""What one batch may cost: CPU time and memory are bounded."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradledger.delivery.http_client import Client
from gradledger_monitor.ingest import bounds
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import get_run
from helpers import http
from helpers.batches import batch, fair_step, step
from helpers.proc import cpu_seconds, memory, reset_peak_memory
from helpers.service import Service, running_service

MEGABYTE = 2**20
RUN = b'{"type":"run","run":"r","name":"r","optimizers":["SGD"]}\n'


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the default bounds, warmed up."""
    folder = tmp_path_factory.mktemp("bounded")
    with running_service(folder / "a.db") as running:
        assert running.post(batch("warm", [step(1)])).status_code == 200
        yield running


def bomb(name: str) -> bytes:
    """A body of less than 33 MB of which each part costs as much as it can."""
    few = 200_000
    objects = b'{"type":"step","optimizer":0,"step":%d,"time":1,"micro_batches":[%s]}\n'
    lists = b'{"type":"run","run":"l","name":"l","config":{"a":[%s]}}\n'
    micro_batches = b",".join([b"{}"] * 65_000)
    return {
        "refused lines": b"{}\n" * 10_000_000,
        "blank lines": RUN + b"\n" * 30_000_000,
        "run records": b"".join(
            b'{"type":"run","run":"r%d","name":"r","optimizers":[]}\n' % n for n in range(few)
        ),
        "empty micro-batches": RUN + b"".join(objects % (n, micro_batches) for n in range(1, 150)),
        "empty lists": lists % b",".join([b"[]"] * 10_000_000),
    }[name]


NAMES = ["refused lines", "blank lines", "run records", "empty micro-batches", "empty lists"]


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_is_refused_at_a_bounded_cost(bounded: Service, name: str) -> None:
    body = gzip.compress(bomb(name), 9)
    assert len(body) < 4 * MEGABYTE
    before = memory(bounded.process.pid)
    reset_peak_memory(bounded.process.pid)
    cpu = cpu_seconds(bounded.process.pid)
    answer = bounded.post(body, Content_Encoding="gzip")
    assert cpu_seconds(bounded.process.pid) - cpu < 5
    assert answer.status_code == 413
    problem = answer.json()
    assert "GRADLEDGER_MAX_BATCH_" in problem["detail"] and "send fewer" in problem["detail"]
    assert memory(bounded.process.pid, "VmHWM") - before < 150 * MEGABYTE


def test_gzip_of_a_million_members_is_ended(bounded: Service) -> None:
    member = gzip.compress(b"")
    body = gzip.compress(RUN) + member * 1_200_000
    cpu = cpu_seconds(bounded.process.pid)
    assert bounded.post(body, Content_Encoding="gzip").status_code in (400, 413)
    assert cpu_seconds(bounded.process.pid) - cpu < 10


def test_refusals_are_counted_and_the_first_hundred_are_listed(bounded: Service) -> None:
    answer = bounded.post(gzip.compress(RUN + b"{}\n" * 40_000), Content_Encoding="gzip")
    assert answer.status_code == 422 and len(answer.content) < 20_000
    problem = answer.json()
    assert problem["refused"] == 40_000
    assert [error["line"] for error in problem["errors"]] == list(range(2, 102))
    assert problem["detail"].endswith("The first 100 are listed.")


def test_others_are_served_while_the_most_costly_batches_are_decoded(bounded: Service) -> None:
    # the most that is decoded at all: below every bound
    lines = 45_000
    dense = RUN + b"".join(
        b'{"type":"step","optimizer":0,"step":%d,"time":1,"lrs":[%s]}\n'
        % (n, b",".join([b"1"] * 50))
        for n in range(1, lines)
    )
    assert bounds.estimate_memory(dense) < 256 * MEGABYTE
    statuses: list[int] = []

    def attack(number: int) -> None:
        named = gzip.compress(dense.replace(b'"run":"r"', b'"run":"d%d"' % number, 1), 1)
        statuses.append(bounded.post(named, Content_Encoding="gzip").status_code)

    attackers = [threading.Thread(target=attack, args=(n,)) for n in range(4)]
    for thread in attackers:
        thread.start()
    answered = 0
    with http.client() as client:
        while any(thread.is_alive() for thread in attackers):
            assert client.get(f"{bounded.url}/healthz").status_code == 200
            answered += 1
    assert set(statuses) <= {200, 413, 429}
    # If decoding blocked the event loop, there would be one answer between two batches.
    assert answered > len(attackers) + 1


def test_a_batch_that_takes_too_long_is_refused_and_nothing_of_it_is_stored(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with running_service(tmp_path / "a.db", max_batch_seconds="0.3") as hurried:
        runs = b"".join(
            b'{"type":"run","run":"r%d","name":"r","optimizers":["SGD"]}\n' % n
            for n in range(10_000)
        )
        answer = hurried.post(runs)
        assert answer.status_code == 413
        assert "takes longer than 0.3 s (GRADLEDGER_MAX_BATCH_SECONDS)" in answer.json()["detail"]
        assert hurried.post(batch("small", [step(1)])).status_code == 200
    store = Store(url)
    assert get_run(store, "r0") is None and get_run(store, "small") is not None
    store.close()


def test_the_hooks_cut_a_batch_that_is_beyond_a_bound(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db", max_batch_lines="10") as strict:
        client = Client(strict.url)
        assert client.post([batch("cut", map(fair_step, range(1, 21)))]).outcome == "too_large"
        assert client.post([batch("cut", map(fair_step, range(1, 10)))]).outcome == "accepted"
        client.close()


def test_what_honest_hooks_send_at_most_is_far_below_the_bounds() -> None:
    largest = 8 * MEGABYTE  # the hooks' bound on a batch
    line = batch("r", [fair_step(1, tokens=tuple(range(1, 65)))])
    assert bounds.estimate_memory(line * (largest // len(line))) < 256 * MEGABYTE / 2
