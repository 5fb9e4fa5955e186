"""The pipeline and services that work, fail or hang: no loss, no waiting, one message each."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gradledger.delivery import buffer, http_client, pipeline, uploader
from gradledger.delivery.background import running
from gradledger.delivery.http_client import Client
from gradledger.delivery.pipeline import Pipeline
from gradledger.delivery.spool import Spool, SpoolLocation, take_leftover_files
from gradledger.on_finding import FindingHandler, Policy
from gradledger.records import EndRecord, HeartbeatRecord, RunRecord, StepRecord, encode
from helpers.batches import eventually, step
from helpers.misbehaving import (
    Behaviour,
    Server,
    hangs_up,
    is_silent,
    never_ends,
    says,
    server,
    takes,
    takes_and_hangs_up,
    takes_few,
    talks_nonsense,
    trickles,
)

QUIET = FindingHandler(Policy("off"), str, bool)


@dataclass
class Pending:
    """A pending record, as the session creates it."""

    record: StepRecord
    ready: bool = True

    def resolve(self) -> StepRecord:
        """The record."""
        return self.record


@dataclass
class Training:
    """A pipeline as a training uses it."""

    url: str
    folder: Path | None
    number: int = 0
    heartbeat: HeartbeatRecord | None = None
    pipeline: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        location = None if self.folder is None else SpoolLocation(self.folder, self.url)
        run = RunRecord("night-1", "a run", optimizers=["SGD"])
        self.pipeline = Pipeline(
            Client(self.url), lambda: run, lambda: self.heartbeat, location, QUIET
        )

    def steps(self, count: int, seconds: float = 0.0) -> None:
        """Take ``count`` steps."""
        for _ in range(count):
            self.number += 1
            self.pipeline.put(Pending(step(self.number)))
            time.sleep(seconds / count)

    def end(self) -> float:
        """Close the pipeline; returns the seconds that it took."""
        began = time.monotonic()
        self.pipeline.close(EndRecord(9.0, [self.number]))
        return time.monotonic() - began


Train = Callable[..., Training]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    """Starts trainings, and ends those that a test leaves open."""
    started: list[Training] = []

    def start(url: str, folder: Path | None = tmp_path / "spool") -> Training:
        started.append(Training(url, folder))
        return started[-1]

    yield start
    for one in started:
        one.end()
    assert eventually(60, lambda: not running())  # else they would disturb the next test


def on_disk(folder: Path) -> list[bytes]:
    """The step lines of the spool."""
    texts = [path.read_bytes() for path in sorted(folder.rglob("*.jsonl"))]
    return [line for text in texts for line in text.splitlines() if b'"type":"step"' in line]


def test_a_healthy_service_gets_all_records_in_order_and_the_disk_is_not_used(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "TICK_SECONDS", 1.0)  # a busy machine may be late within 0.1
    with server(takes) as service:
        training = train(service.url)
        training.steps(300, seconds=2.0)
        assert training.end() < 1.0
        assert service.steps() == list(range(1, 301))
        assert service.taken[-1] == {"time": 9.0, "steps": [300], "type": "end"}
    assert not (tmp_path / "spool").exists()


FAILS: dict[str, Behaviour] = {
    "wants a token": says(401),
    "fails": says(500),
    "is behind a login page": says(200, b"<html>please log in</html>"),
    "answers with other JSON": says(200, b"true"),
    "redirects": says(302, Location="http://127.0.0.1:1/"),
    "refuses without a reason": says(422, b"{}"),
    "talks nonsense": talks_nonsense,
    "hangs up": hangs_up,
    "never ends": never_ends,
    "is silent": is_silent,
    "trickles": trickles,
}


@pytest.mark.parametrize("kind", FAILS)
def test_a_failing_service_loses_no_record_and_does_not_delay_the_end(
    kind: str, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "READ_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(http_client, "RESPONSE_SECONDS", 1.0)
    with server(FAILS[kind]) as service:
        training = train(service.url)
        training.steps(100, seconds=2.0)
        assert training.end() < pipeline.EXIT_SECONDS + 0.2
        assert service.steps() == []
        assert service.requests
        assert len(on_disk(tmp_path / "spool")) == 100
        assert eventually(
            60, lambda: not running()
        )  # a late response must not be taken for the next one
        service.behaviour = takes
        next_training = train(service.url)
        next_training.number = 100
        next_training.steps(1)
        assert eventually(60, lambda: len(service.steps()) == 101)
        assert service.steps() == [101, *range(1, 101)]
        assert eventually(60, lambda: on_disk(tmp_path / "spool") == [])


def test_a_failing_service_is_reported_once(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "BACKOFF_SECONDS", (0.01,))
    with server(says(500)) as service:
        training = train(service.url)
        training.steps(10, seconds=1.0)
        training.end()
        assert len(service.requests) > 10
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 2
    assert "cannot send records to the service (HTTP status 500)" in messages[0]
    assert "11 records not sent yet" in messages[1]


@pytest.mark.parametrize(
    ("status", "fix"),
    [(401, "GRADLEDGER_TOKEN"), (403, "scope ingest"), (421, "GRADLEDGER_ALLOWED_HOSTS")],
)
def test_a_service_that_denies_access_is_reported_with_the_fix(
    status: int, fix: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(says(status)) as service:
        training = train(service.url)
        training.steps(1)
        training.end()
    (messages,) = capsys.readouterr().err.splitlines()
    assert f"HTTP status {status}: " in messages and fix in messages


def test_failed_batches_are_sent_in_order_when_the_service_recovers(
    train: Train, tmp_path: Path
) -> None:
    with server(says(500)) as service:
        training = train(service.url)
        training.steps(50, seconds=0.5)
        service.behaviour = takes
        training.steps(50, seconds=0.5)
        training.end()
        assert service.steps() == list(range(1, 101))
    assert on_disk(tmp_path / "spool") == []


def slow(running: Server, connection: object, body: bytes) -> None:
    """Accepts a batch after a delay."""
    time.sleep(0.4)
    takes(running, connection, body)  # type: ignore[arg-type]


def test_a_slow_service_gets_every_record_once(train: Train, tmp_path: Path) -> None:
    with server(slow) as service:
        training = train(service.url)
        training.steps(2000, seconds=1.0)
        assert eventually(60, lambda: len(service.steps()) == 2000)
        training.end()
        assert service.steps() == list(range(1, 2001))
    assert on_disk(tmp_path / "spool") == []


def test_the_end_does_not_wait_for_a_slow_service_if_the_disk_works(
    train: Train, tmp_path: Path
) -> None:
    with server(slow) as service:
        training = train(service.url)
        training.steps(3000)
        assert training.end() < 1.0
        left = [json.loads(line)["step"] for line in on_disk(tmp_path / "spool")]
        delivered = service.steps()
        assert {*delivered, *left} == set(range(1, 3001))
        next_training = train(service.url)
        next_training.number = 3000
        next_training.steps(1)
        assert eventually(60, lambda: set(service.steps()) == set(range(1, 3002)))


def test_the_end_waits_longer_if_records_would_be_lost(train: Train) -> None:
    with server(slow) as service:
        training = train(service.url, folder=None)
        training.steps(3000)
        assert 1.0 < training.end() < pipeline.EXIT_SECONDS_UNSAVED
        assert service.steps() == list(range(1, 3001))


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_respected(status: int, train: Train, tmp_path: Path) -> None:
    with server(says(status, Retry_After="2")) as service:
        training = train(service.url)
        training.steps(30, seconds=1.0)
        assert len(service.requests) == 1
        service.behaviour = takes
        assert eventually(4, lambda: len(service.steps()) == 30)
        first, second = service.requests[:2]
        assert 2.0 <= second - first < 3.0


def test_retry_after_is_respected_at_the_end_too(train: Train, tmp_path: Path) -> None:
    with server(says(429, Retry_After="60")) as service:
        training = train(service.url)
        training.steps(5, seconds=0.5)
        assert training.end() < 0.5
        assert len(service.requests) == 1
    assert len(on_disk(tmp_path / "spool")) == 5


def test_a_batch_that_is_too_large_is_split(train: Train) -> None:
    with server(takes_few(20)) as service:
        training = train(service.url)
        training.steps(200)
        training.end()
        assert service.steps() == list(range(1, 201))


def test_a_service_that_closes_idle_connections_is_not_a_failing_service(
    train: Train,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "TICK_SECONDS", 0.5)
    with server(takes_and_hangs_up) as service:
        training = train(service.url)
        training.steps(20, seconds=2.0)
        training.end()
        assert service.steps() == list(range(1, 21))
        assert len(service.connections) > 2
    assert capsys.readouterr().err == ""
    assert on_disk(tmp_path / "spool") == []


def test_refused_records_are_counted_and_reported(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = b'{"stored": 0, "errors": [{"line": 2, "field": "$.step", "reason": "no"}]}'
    with server(says(422, refusal)) as service:
        training = train(service.url)
        training.steps(1)
        assert eventually(2, lambda: len(service.requests) == 1)
        service.behaviour = takes
        time.sleep(0.1)
        training.steps(1)
        training.end()
        (accepted,) = [record for record in service.taken if record["type"] == "step"]
        assert accepted["dropped"] == 1
    assert capsys.readouterr().err.count("refused 1 record ($.step: no)") == 1


def test_refused_leftover_files_are_renamed(train: Train, tmp_path: Path) -> None:
    refusal = b'{"stored": 0, "errors": [{"line": 2, "field": "$", "reason": "unknown run"}]}'
    with server(says(422, refusal)) as service:
        folder = SpoolLocation(tmp_path / "spool", service.url).directory
        folder.mkdir(parents=True)
        (folder / "old.jsonl").write_bytes(b'{"type":"step"}\n')
        training = train(service.url)
        training.steps(1)
        assert eventually(60, lambda: (folder / "old.refused").exists())
        assert not (folder / "old.jsonl").exists()


def test_one_of_two_processes_sends_the_files_of_a_third(train: Train, tmp_path: Path) -> None:
    with server(takes) as service:
        left = Spool(SpoolLocation(tmp_path / "spool", service.url), "dead.3.1")
        head = encode(RunRecord("dead", "dead", 3, 4))
        left.append(head, [encode(step(number)) for number in range(1001, 2001)])
        left.close()
        both = [train(service.url), train(service.url)]
        for training in both:
            training.steps(1)
        assert eventually(60, lambda: len(service.steps()) >= 1002)
        assert eventually(60, lambda: not list(tmp_path.rglob("*.jsonl")))
        for training in both:
            training.end()
        assert sorted(map(str, service.steps())) == sorted(map(str, [1, 1, *range(1001, 2001)]))
        ranks = {record["rank"] for record in service.taken if record.get("run") == "dead"}
        assert ranks == {3}


# ---------------------------------------------------------------------- disks


def test_without_a_writable_folder_records_wait_in_memory(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the fix")
    with server(says(500)) as service:
        training = train(service.url, tmp_path / "file" / "spool")
        training.steps(50, seconds=1.0)
        service.behaviour = takes
        training.end()
        assert service.steps() == list(range(1, 51))
    assert capsys.readouterr().err.count("(Not a directory); they stay in memory") == 1


def test_without_a_disk_lost_records_are_reported(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "EXIT_SECONDS_UNSAVED", 0.5)
    with server(is_silent) as service:
        training = train(service.url, folder=None)
        training.steps(50)
        assert training.end() < 2.0
    messages = capsys.readouterr().err
    assert re.search(r"51 records lost: not sent \(.+\), and not stored on disk", messages)


def test_memory_is_bounded_records_are_thinned_then_dropped_and_counted(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(buffer, "MEMORY_BYTES", 200_000)
    with server(says(500)) as service:
        training = train(service.url, folder=None)
        for _ in range(20):
            training.steps(100, seconds=0.12)
        lines = training.pipeline._buffer
        assert lines._memory_bytes <= 200_000
        assert lines.dropped > 0
        service.behaviour = takes
        training.end()
        arrived = service.steps()
        assert arrived == list(range(2001 - len(arrived), 2001))
        assert len(arrived) + lines.dropped == 2000
        records = [record for record in service.taken if record["type"] == "step"]
        assert "thinned" in str(records[0]) and "thinned" not in str(records[-1])
        assert 0 < int(str(records[-1]["dropped"])) <= lines.dropped
    assert capsys.readouterr().err.count("the oldest are dropped") == 1


def test_steps_that_overflow_the_queue_are_counted_and_training_is_not_slowed(train: Train) -> None:
    with server(takes) as service:
        training = train(service.url)
        late = Pending(step(1), ready=False)
        training.pipeline.put(late)
        training.number = 1
        training.steps(pipeline.QUEUE_STEPS + 99)
        late.ready = True
        assert eventually(60, lambda: not training.pipeline._queue)
        training.steps(1)
        assert eventually(60, lambda: len(service.steps()) == training.number - 100)
        training.end()
        last = [record for record in service.taken if record["type"] == "step"][-1]
        assert last["dropped"] == 100


# ---------------------------------------------------------------------- pending values, heartbeats


def test_pending_values_are_not_waited_for_and_the_order_stays(train: Train) -> None:
    with server(takes) as service:
        training = train(service.url)
        late = Pending(step(1), ready=False)
        training.pipeline.put(late)
        training.number = 1
        training.steps(3)
        time.sleep(0.4)
        assert service.steps() == []
        late.ready = True
        assert eventually(2, lambda: service.steps() == [1, 2, 3, 4])


def test_values_that_never_arrive_do_not_delay_the_end(train: Train) -> None:
    with server(takes) as service:
        training = train(service.url)
        training.steps(2)
        training.pipeline.put(Pending(step(3), ready=False))
        assert training.end() < pipeline.READY_SECONDS + 0.5
        assert service.steps() == [1, 2]


def test_a_heartbeat_is_sent_while_nothing_else_is(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "HEARTBEAT_SECONDS", 0.3)
    with server(takes) as service:
        training = train(service.url)
        training.steps(1)
        training.heartbeat = HeartbeatRecord(5.0, 12.0, 3)
        time.sleep(1.5)
        heartbeats = [record for record in service.taken if record["type"] == "heartbeat"]
        assert 3 <= len(heartbeats) <= 6
        assert heartbeats[0] == {
            "time": 5.0,
            "since_step": 12.0,
            "backwards": 3,
            "type": "heartbeat",
        }


def test_an_idle_pipeline_uses_almost_no_cpu_time(train: Train) -> None:
    with server(takes) as service:
        training = train(service.url)
        training.steps(1)
        assert eventually(2, lambda: service.steps() == [1])
        before = os.times()
        time.sleep(2)
        after = os.times()
    assert (after.user + after.system) - (before.user + before.system) < 0.06


def test_putting_a_record_is_an_append(train: Train) -> None:
    with server(is_silent) as service:
        training = train(service.url)
        training.steps(1)
        window = Pending(step(2))
        took = []
        for _ in range(2000):
            began = time.perf_counter()
            training.pipeline.put(window)
            took.append(time.perf_counter() - began)
        assert sorted(took)[1000] < 5e-6


def test_closed_pipelines_leave_no_thread_and_no_open_file(train: Train, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with server(says(500)) as service:
        location = SpoolLocation(tmp_path / "spool", service.url)
        for _ in range(3):
            training = train(service.url)
            training.steps(5, seconds=0.3)
            training.end()
    assert eventually(2, lambda: not running())
    for file in take_leftover_files(location):
        file.close()
    assert len(os.listdir("/proc/self/fd")) <= before
