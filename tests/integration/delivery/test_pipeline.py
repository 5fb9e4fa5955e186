"""The pipeline and services that work, fail or hang: no loss, no waiting, one message each.

Its end has no time limit, except where a test sets one: a test that waits for another one hangs.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from gradledger.delivery import buffer, http_client, pipeline, uploader
from gradledger.delivery.background import running
from gradledger.delivery.encoding import encode
from gradledger.delivery.http_client import Client
from gradledger.delivery.pipeline import Pipeline
from gradledger.delivery.spool import Spool, SpoolLocation, take_leftover_files
from gradledger.on_finding import FindingHandler, Policy
from gradledger.records import EndRecord, HeartbeatRecord, RunRecord, StepRecord
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
from helpers.patience import HANGS
from helpers.sending import Clock

from .conftest import step_lines

pytestmark = pytest.mark.usefixtures("patient")

SHORT = 0.05  # a time limit that a test waits for
QUIET = FindingHandler(Policy("off"), str, bool)


@dataclass
class Pending:
    """A pending record, as the session creates it."""

    record: StepRecord
    ready: bool = True

    def resolve(self) -> StepRecord:
        """The record."""
        return self.record


class RecordedEvent(threading.Event):
    """An event that records the time limits of those who wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.limits.append(timeout)
        return super().wait(timeout)


@dataclass
class Training:
    """A pipeline as a training uses it."""

    url: str
    folder: Path | None
    number: int = 0
    heartbeat: HeartbeatRecord | None = None
    pipeline: Pipeline = field(init=False)
    done: RecordedEvent = field(default_factory=RecordedEvent)
    device_calls: threading.Lock = field(default_factory=threading.Lock)
    passes: int = 0  # of the uploader

    def __post_init__(self) -> None:
        location = None if self.folder is None else SpoolLocation(self.folder, self.url)
        run = RunRecord("night-1", "a run", optimizers=["SGD"])
        self.pipeline = Pipeline(
            Client(self.url),
            lambda: run,
            lambda: self.heartbeat,
            location,
            QUIET,
            self.device_calls,
        )
        uploader = self.pipeline._uploader
        work, uploader.done = uploader._work, self.done

        def counted() -> None:
            work()
            self.passes += 1

        uploader._work = counted  # type: ignore[method-assign]

    def steps(self, count: int) -> None:
        """Take ``count`` steps."""
        for _ in range(count):
            self.number += 1
            self.pipeline.put(Pending(step(self.number)))

    def tick(self) -> None:
        """Do what the pipeline thread does every TICK_SECONDS."""
        self.pipeline._tick()

    def all_sent(self) -> bool:
        """Whether the service has acknowledged every record."""
        return eventually(
            HANGS, lambda: not self.pipeline._queue and not len(self.pipeline._buffer)
        )

    def uploader_looked(self) -> bool:
        """Whether the uploader, woken now, has done what there is to do at this time."""
        before = self.passes

        def looked() -> bool:
            self.pipeline._uploader.wake()
            return self.passes >= before + 2  # the first may have begun before this call

        return eventually(HANGS, looked)

    def end(self) -> list[float | None]:
        """Close the pipeline; returns the time limits of its waits for the uploader."""
        self.pipeline.close(EndRecord(9.0, [self.number]))
        thread = self.pipeline._thread
        assert thread is None or thread._ended.is_set(), "its thread still waits for something"
        return self.done.limits


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
    assert eventually(HANGS, lambda: not running())  # else they would disturb the next test


@pytest.fixture
def no_ticks(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline has only the ticks that the test calls."""
    monkeypatch.setattr(pipeline, "TICK_SECONDS", HANGS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of the uploader."""
    clock = Clock()
    monkeypatch.setattr(uploader, "time", SimpleNamespace(monotonic=clock))
    return clock


def limit_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the end wait for the service for a short time only."""
    monkeypatch.setattr(pipeline, "EXIT_SECONDS", SHORT)
    monkeypatch.setattr(pipeline, "EXIT_SECONDS_UNANSWERED", SHORT)


@pytest.mark.usefixtures("no_ticks")
def test_no_value_is_read_while_calls_to_a_device_are_not_allowed(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(takes) as service:
        training = train(service.url)
        training.steps(2)
        with training.device_calls:  # as during the capture of a CUDA graph
            monkeypatch.setattr(pipeline, "TICK_SECONDS", SHORT)
            training.tick()
            assert len(training.pipeline._queue) == 2
        training.tick()
        assert training.all_sent()


@pytest.mark.usefixtures("no_ticks")
def test_a_healthy_service_gets_all_records_in_order_and_the_disk_is_not_used(
    train: Train, tmp_path: Path
) -> None:
    with server(takes) as service:
        training = train(service.url)
        for _ in range(10):
            training.steps(30)
            training.tick()
            assert training.all_sent()
        assert service.steps() == list(range(1, 301))
        training.end()
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
    monkeypatch.setattr(http_client, "READ_TIMEOUT_SECONDS", HANGS)
    monkeypatch.setattr(http_client, "RESPONSE_SECONDS", HANGS)
    limit_the_end(monkeypatch)
    with server(FAILS[kind]) as service:
        training = train(service.url)
        training.steps(50)
        assert eventually(HANGS, lambda: bool(service.requests))
        training.steps(50)
        assert eventually(HANGS, lambda: len(step_lines(tmp_path / "spool")) == 100)
        assert training.end() == [SHORT]
        assert service.steps() == []
        assert len(step_lines(tmp_path / "spool")) == 100
        # a late response must not be taken for the next one
        assert eventually(HANGS, lambda: not running())
        service.behaviour = takes
        next_training = train(service.url)
        next_training.number = 100
        next_training.steps(1)
        assert eventually(HANGS, lambda: len(service.steps()) == 101)
        assert service.steps() == [101, *range(1, 101)]
        assert eventually(HANGS, lambda: step_lines(tmp_path / "spool") == [])


@pytest.mark.parametrize("kind", ["is silent", "trickles"])
def test_a_response_that_takes_too_long_is_cut_and_the_batch_is_sent_again(
    kind: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "READ_TIMEOUT_SECONDS" if kind == "is silent" else "RESPONSE_SECONDS"
    monkeypatch.setattr(http_client, limit, SHORT)
    with server(FAILS[kind]) as service:
        training = train(service.url)
        training.steps(1)
        assert eventually(HANGS, lambda: len(service.requests) > 1)
        service.behaviour, before = takes, len(service.requests)
        assert eventually(HANGS, lambda: len(service.requests) > before)
        monkeypatch.setattr(http_client, limit, HANGS)
        assert eventually(HANGS, lambda: service.steps() == [1])


def test_a_failing_service_is_reported_once(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "BACKOFF_SECONDS", (0.01,))
    with server(says(500)) as service:
        training = train(service.url)
        training.steps(10)
        assert eventually(HANGS, lambda: len(service.requests) > 10)
        training.end()
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
        training.steps(50)
        assert eventually(HANGS, lambda: bool(service.requests))
        service.behaviour = takes
        training.steps(50)
        training.end()
        assert service.steps() == list(range(1, 101))
    assert step_lines(tmp_path / "spool") == []


def held(release: threading.Event) -> Behaviour:
    """Accepts batches, but responds to none before ``release``."""

    def behave(running: Server, connection: socket.socket, body: bytes) -> None:
        release.wait(HANGS)
        takes(running, connection, body)

    return behave


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets a service respond that is `held`; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_slow_service_gets_every_record_once(
    train: Train, tmp_path: Path, release: threading.Event
) -> None:
    with server(held(release)) as service:
        training = train(service.url)
        training.steps(1000)
        assert eventually(HANGS, lambda: bool(service.requests))
        training.steps(1000)
        assert eventually(HANGS, lambda: len(step_lines(tmp_path / "spool")) == 2000)
        release.set()
        assert training.all_sent()
        training.end()
        assert service.steps() == list(range(1, 2001))
    assert step_lines(tmp_path / "spool") == []


def test_the_end_does_not_wait_for_a_slow_service_if_the_disk_works(
    train: Train, tmp_path: Path, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_the_end(monkeypatch)
    with server(takes) as service:
        training = train(service.url)
        training.steps(1000)
        assert training.all_sent()
        service.behaviour = held(release)
        training.steps(2000)
        assert training.end() == [SHORT]
        left = [json.loads(line)["step"] for line in step_lines(tmp_path / "spool")]
        assert (service.steps(), left) == (list(range(1, 1001)), list(range(1001, 3001)))
        release.set()
        next_training = train(service.url)
        next_training.number = 3000
        next_training.steps(1)
        assert eventually(HANGS, lambda: set(service.steps()) == set(range(1, 3002)))


def test_the_end_waits_longer_if_records_would_be_lost(
    train: Train, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_the_end(monkeypatch)
    with server(held(release)) as service:
        training = train(service.url, folder=None)
        training.steps(3000)
        end = threading.Thread(target=training.end)
        end.start()
        assert eventually(HANGS, lambda: training.done.limits == [SHORT, HANGS])
        release.set()
        end.join()
        assert service.steps() == list(range(1, 3001))


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_respected(status: int, train: Train, clock: Clock) -> None:
    times: list[float] = []

    def refuse(running: Server, connection: socket.socket, body: bytes) -> None:
        times.append(clock())
        says(status, Retry_After="500")(running, connection, body)

    with server(refuse) as service:
        training = train(service.url)
        training.steps(30)
        began = clock()
        for after in (0, 300, 499, 500, 501):
            clock.time = began + after
            training.steps(1)
            assert training.uploader_looked()
        assert times == [began, began + 500]


def test_retry_after_is_respected_at_the_end_too(train: Train, tmp_path: Path) -> None:
    with server(says(429, Retry_After="60")) as service:
        training = train(service.url)
        training.steps(5)
        assert eventually(HANGS, lambda: bool(service.requests))
        training.end()
        assert len(service.requests) == 1
    assert len(step_lines(tmp_path / "spool")) == 5


def test_a_batch_that_is_too_large_is_split(train: Train) -> None:
    with server(takes_few(20)) as service:
        training = train(service.url)
        training.steps(200)
        training.end()
        assert service.steps() == list(range(1, 201))


@pytest.mark.usefixtures("no_ticks")
def test_a_service_that_closes_idle_connections_is_not_a_failing_service(
    train: Train, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with server(takes_and_hangs_up) as service:
        training = train(service.url)
        for _ in range(4):
            training.steps(5)
            training.tick()
            assert training.all_sent()
        training.end()
        assert service.steps() == list(range(1, 21))
        assert len(service.connections) > 2
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "spool").exists()


def test_refused_records_are_counted_and_reported(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = b'{"stored": 0, "errors": [{"line": 2, "field": "$.step", "reason": "no"}]}'
    with server(says(422, refusal)) as service:
        training = train(service.url)
        training.steps(1)
        assert eventually(HANGS, lambda: training.pipeline._uploader.refused == 1)
        service.behaviour = takes
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
        assert eventually(HANGS, lambda: (folder / "old.refused").exists())
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
        assert eventually(HANGS, lambda: len(service.steps()) >= 1002)
        assert eventually(HANGS, lambda: not list(tmp_path.rglob("*.jsonl")))
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
        training.steps(50)
        assert eventually(HANGS, lambda: training.pipeline._buffer._disk_not_before > 0)
        service.behaviour = takes
        training.end()
        assert service.steps() == list(range(1, 51))
    assert capsys.readouterr().err.count("(Not a directory); they stay in memory") == 1


def test_without_a_disk_lost_records_are_reported(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_the_end(monkeypatch)
    monkeypatch.setattr(pipeline, "EXIT_SECONDS_UNSAVED", 2 * SHORT)
    with server(is_silent) as service:
        training = train(service.url, folder=None)
        training.steps(50)
        assert training.end() == [SHORT, 2 * SHORT]
    messages = capsys.readouterr().err
    assert re.search(r"51 records lost: not sent \(.+\), and not stored on disk", messages)


def test_memory_is_bounded_records_are_thinned_then_dropped_and_counted(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(buffer, "MEMORY_BYTES", 200_000)
    with server(says(500)) as service:
        training = train(service.url, folder=None)
        for _ in range(20):
            training.steps(100)
            assert eventually(HANGS, lambda: not training.pipeline._queue)
        lines = training.pipeline._buffer
        with lines._lock:  # else it may be read after lines were added, and before others left
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
        assert eventually(HANGS, lambda: not training.pipeline._queue)
        training.steps(1)
        assert eventually(HANGS, lambda: len(service.steps()) == training.number - 100)
        training.end()
        last = [record for record in service.taken if record["type"] == "step"][-1]
        assert last["dropped"] == 100


# ---------------------------------------------------------------------- pending values, heartbeats


@pytest.mark.usefixtures("no_ticks")
def test_pending_values_are_not_waited_for_and_the_order_stays(train: Train) -> None:
    with server(takes) as service:
        training = train(service.url)
        late = Pending(step(1), ready=False)
        training.pipeline.put(late)
        training.number = 1
        training.steps(3)
        training.tick()
        assert len(training.pipeline._queue) == 4
        late.ready = True
        training.tick()
        assert training.all_sent()
        assert service.steps() == [1, 2, 3, 4]


def test_values_that_never_arrive_do_not_delay_the_end(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "READY_SECONDS", SHORT)
    with server(takes) as service:
        training = train(service.url)
        training.steps(2)
        training.pipeline.put(Pending(step(3), ready=False))
        training.end()
        assert service.steps() == [1, 2]


def test_heartbeats_are_sent_while_nothing_else_is(
    train: Train, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "HEARTBEAT_SECONDS", SHORT)
    with server(takes) as service:
        training = train(service.url)
        training.steps(1)
        training.heartbeat = HeartbeatRecord(5.0, 12.0, 3)
        heartbeat = {"time": 5.0, "since_step": 12.0, "backwards": 3, "type": "heartbeat"}
        for count in (1, 2, 3):  # one each time that the interval has passed
            assert eventually(HANGS, lambda count=count: service.taken.count(heartbeat) == count)  # type: ignore[misc]
            assert training.uploader_looked()
            assert service.taken.count(heartbeat) == count
            clock.time += SHORT


class Calls(list[str]):
    """The functions that a thread calls while this is open."""

    def __enter__(self) -> Calls:
        sys.setprofile(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        del self[-2:]  # of this method

    def _record(self, frame: FrameType, event: str, function: Any) -> None:
        if event in ("call", "c_call"):
            self.append(frame.f_code.co_name if event == "call" else function.__name__)


def test_an_idle_pipeline_does_almost_nothing(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(takes) as service:
        training = train(service.url)
        training.steps(1)
        assert training.all_sent()
        ticks: list[list[str]] = []
        tick = training.pipeline._tick

        def recorded() -> None:
            with Calls() as calls:
                tick()
            ticks.append(calls)

        monkeypatch.setattr(training.pipeline, "_tick", recorded)
        passes = training.passes
        assert eventually(HANGS, lambda: len(ticks) > 20)
        assert training.passes - passes <= 2  # the last one, and one more if it was woken meanwhile
    checks = {"_tick", "_resolve_ready", "cut_if_late", "waiting", "len", "__len__"}
    checks |= {"__enter__", "__exit__"}
    checks |= {"sum", "<genexpr>"}  # over the one file, if the response took longer than a tick
    idle = [calls for calls in ticks if checks.issuperset(calls) and len(calls) < 30]
    assert len(idle) > len(ticks) / 2, ticks  # the others wrote down that the process is alive


def test_putting_a_record_is_an_append(train: Train) -> None:
    with server(is_silent) as service:
        training = train(service.url)
        training.steps(1)
        second = Pending(step(2))
        with Calls() as calls:
            training.pipeline.put(second)
        assert calls == ["put", "len", "append"]


def test_closed_pipelines_leave_no_thread_and_no_open_file(train: Train, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with server(says(500)) as service:
        location = SpoolLocation(tmp_path / "spool", service.url)
        for _ in range(3):
            training = train(service.url)
            training.steps(5)
            assert eventually(HANGS, lambda: bool(service.requests))
            service.requests.clear()
            training.end()
    assert eventually(HANGS, lambda: not running())
    for file in take_leftover_files(location):
        file.close()
    assert len(os.listdir("/proc/self/fd")) <= before
