"""The sender against services of every kind: nothing lost, nothing waited for, said once."""

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
class Window:
    """A closed window as the session hands it over."""

    record: StepRecord
    ready: bool = True

    def resolve(self) -> StepRecord:
        """The record."""
        return self.record


@dataclass
class Training:
    """A sender as a training uses it."""

    url: str
    folder: Path | None
    number: int = 0
    beat: HeartbeatRecord | None = None
    pipeline: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        place = None if self.folder is None else SpoolLocation(self.folder, self.url)
        run = RunRecord("night-1", "a run", optimizers=["SGD"])
        self.sender = Pipeline(Client(self.url), lambda: run, lambda: self.beat, place, QUIET)

    def steps(self, count: int, seconds: float = 0.0) -> None:
        """Take so many steps."""
        for _ in range(count):
            self.number += 1
            self.sender.put(Window(step(self.number)))
            time.sleep(seconds / count)

    def end(self) -> float:
        """End; returns how long that took."""
        began = time.monotonic()
        self.sender.close(EndRecord(9.0, [self.number]))
        return time.monotonic() - began


Train = Callable[..., Training]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    """Starts trainings, and ends what a test leaves open."""
    started: list[Training] = []

    def start(url: str, folder: Path | None = tmp_path / "spool") -> Training:
        started.append(Training(url, folder))
        return started[-1]

    yield start
    for one in started:
        one.end()
    assert eventually(60, lambda: not running())  # else they would disturb the next test


def on_disk(folder: Path) -> list[bytes]:
    """Every line of the spool that is a step."""
    texts = [path.read_bytes() for path in sorted(folder.rglob("*.jsonl"))]
    return [line for text in texts for line in text.splitlines() if b'"type":"step"' in line]


def test_with_a_good_service_all_arrives_in_order_and_no_disk_is_touched(
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
    "says yes to everything": says(200, b"true"),
    "redirects": says(302, Location="http://127.0.0.1:1/"),
    "refuses without saying what": says(422, b"{}"),
    "talks nonsense": talks_nonsense,
    "hangs up": hangs_up,
    "never ends": never_ends,
    "is silent": is_silent,
    "trickles": trickles,
}


@pytest.mark.parametrize("kind", FAILS)
def test_no_failing_service_loses_a_record_or_holds_up_the_end(
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
        assert eventually(60, lambda: not running())  # a late answer is not the next one's
        service.behaviour = takes
        next_one = train(service.url)
        next_one.number = 100
        next_one.steps(1)
        assert eventually(60, lambda: len(service.steps()) == 101)
        assert service.steps() == [101, *range(1, 101)]
        assert eventually(60, lambda: on_disk(tmp_path / "spool") == [])


def test_a_failing_service_is_spoken_of_once(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "BACKOFF_SECONDS", (0.01,))
    with server(says(500)) as service:
        training = train(service.url)
        training.steps(10, seconds=1.0)
        training.end()
        assert len(service.requests) > 10
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert "cannot send records to the service (HTTP status 500)" in told[0]
    assert "11 records not sent yet" in told[1]


@pytest.mark.parametrize(
    ("status", "way"),
    [(401, "GRADLEDGER_TOKEN"), (403, "scope ingest"), (421, "GRADLEDGER_ALLOWED_HOSTS")],
)
def test_a_service_that_lets_nobody_in_is_spoken_of_with_the_way_in(
    status: int, way: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(says(status)) as service:
        training = train(service.url)
        training.steps(1)
        training.end()
    (told,) = capsys.readouterr().err.splitlines()
    assert f"HTTP status {status}: " in told and way in told


def test_what_failed_is_sent_in_order_once_the_service_is_well(
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
    """Takes what comes, after a while."""
    time.sleep(0.4)
    takes(running, connection, body)  # type: ignore[arg-type]


def test_a_service_that_is_slow_gets_everything_once(train: Train, tmp_path: Path) -> None:
    with server(slow) as service:
        training = train(service.url)
        training.steps(2000, seconds=1.0)
        assert eventually(60, lambda: len(service.steps()) == 2000)
        training.end()
        assert service.steps() == list(range(1, 2001))
    assert on_disk(tmp_path / "spool") == []


def test_the_end_waits_for_no_slow_service_that_the_disk_can_wait_for(
    train: Train, tmp_path: Path
) -> None:
    with server(slow) as service:
        training = train(service.url)
        training.steps(3000)
        assert training.end() < 1.0
        left = [json.loads(line)["step"] for line in on_disk(tmp_path / "spool")]
        delivered = service.steps()
        assert {*delivered, *left} == set(range(1, 3001))
        next_one = train(service.url)
        next_one.number = 3000
        next_one.steps(1)
        assert eventually(60, lambda: set(service.steps()) == set(range(1, 3002)))


def test_the_end_waits_longer_where_records_would_be_lost(train: Train) -> None:
    with server(slow) as service:
        training = train(service.url, folder=None)
        training.steps(3000)
        assert 1.0 < training.end() < pipeline.EXIT_SECONDS_UNSAVED
        assert service.steps() == list(range(1, 3001))


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_asks_for_time_gets_it(status: int, train: Train, tmp_path: Path) -> None:
    with server(says(status, Retry_After="2")) as service:
        training = train(service.url)
        training.steps(30, seconds=1.0)
        assert len(service.requests) == 1
        service.behaviour = takes
        assert eventually(4, lambda: len(service.steps()) == 30)
        first, second = service.requests[:2]
        assert 2.0 <= second - first < 3.0


def test_a_service_that_asked_for_time_is_left_alone_at_the_end_too(
    train: Train, tmp_path: Path
) -> None:
    with server(says(429, Retry_After="60")) as service:
        training = train(service.url)
        training.steps(5, seconds=0.5)
        assert training.end() < 0.5
        assert len(service.requests) == 1
    assert len(on_disk(tmp_path / "spool")) == 5


def test_a_batch_that_is_too_large_is_sent_in_parts(train: Train) -> None:
    with server(takes_few(20)) as service:
        training = train(service.url)
        training.steps(200)
        training.end()
        assert service.steps() == list(range(1, 201))


def test_a_service_that_keeps_no_connection_is_no_failing_service(
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


def test_what_is_refused_is_counted_in_the_records_and_said(
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
        (kept,) = [record for record in service.taken if record["type"] == "step"]
        assert kept["dropped"] == 1
    assert capsys.readouterr().err.count("refused 1 record ($.step: no)") == 1


def test_orphans_that_are_refused_are_kept_under_another_name(train: Train, tmp_path: Path) -> None:
    refusal = b'{"stored": 0, "errors": [{"line": 2, "field": "$", "reason": "unknown run"}]}'
    with server(says(422, refusal)) as service:
        folder = SpoolLocation(tmp_path / "spool", service.url).directory
        folder.mkdir(parents=True)
        (folder / "old.jsonl").write_bytes(b'{"type":"step"}\n')
        training = train(service.url)
        training.steps(1)
        assert eventually(60, lambda: (folder / "old.refused").exists())
        assert not (folder / "old.jsonl").exists()


def test_of_two_processes_one_sends_what_a_third_left(train: Train, tmp_path: Path) -> None:
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


def test_a_folder_that_cannot_be_written_costs_nothing_while_memory_lasts(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with server(says(500)) as service:
        training = train(service.url, tmp_path / "file" / "spool")
        training.steps(50, seconds=1.0)
        service.behaviour = takes
        training.end()
        assert service.steps() == list(range(1, 51))
    assert capsys.readouterr().err.count("(Not a directory); they stay in memory") == 1


def test_without_a_disk_what_is_lost_is_said(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "EXIT_SECONDS_UNSAVED", 0.5)
    with server(is_silent) as service:
        training = train(service.url, folder=None)
        training.steps(50)
        assert training.end() < 2.0
    said = capsys.readouterr().err
    assert re.search(r"51 records lost: not sent \(.+\), and not stored on disk", said)


def test_memory_is_bounded_detail_goes_first_and_drops_are_counted(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(buffer, "MEMORY_BYTES", 200_000)
    with server(says(500)) as service:
        training = train(service.url, folder=None)
        for _ in range(20):
            training.steps(100, seconds=0.12)
        held = training.sender._buffer
        assert held._memory_bytes <= 200_000
        assert held.dropped > 0
        service.behaviour = takes
        training.end()
        arrived = service.steps()
        assert arrived == list(range(2001 - len(arrived), 2001))
        assert len(arrived) + held.dropped == 2000
        records = [record for record in service.taken if record["type"] == "step"]
        assert "thinned" in str(records[0]) and "thinned" not in str(records[-1])
        assert 0 < int(str(records[-1]["dropped"])) <= held.dropped
    assert capsys.readouterr().err.count("the oldest are dropped") == 1


def test_a_training_thread_that_outruns_the_gathering_is_counted_not_slowed(train: Train) -> None:
    with server(takes) as service:
        training = train(service.url)
        late = Window(step(1), ready=False)
        training.sender.put(late)
        training.number = 1
        training.steps(pipeline.QUEUE_STEPS + 99)
        late.ready = True
        assert eventually(60, lambda: not training.sender._queue)
        training.steps(1)
        training.end()
        last = [record for record in service.taken if record["type"] == "step"][-1]
        assert last["dropped"] == 100
        assert len(service.steps()) == training.number - 100


# ---------------------------------------------------------------------- values on their way, beats


def test_values_that_are_on_their_way_are_not_waited_for_and_keep_the_order(train: Train) -> None:
    with server(takes) as service:
        training = train(service.url)
        late = Window(step(1), ready=False)
        training.sender.put(late)
        training.number = 1
        training.steps(3)
        time.sleep(0.4)
        assert service.steps() == []
        late.ready = True
        assert eventually(2, lambda: service.steps() == [1, 2, 3, 4])


def test_values_that_never_come_do_not_hold_up_the_end(train: Train) -> None:
    with server(takes) as service:
        training = train(service.url)
        training.steps(2)
        training.sender.put(Window(step(3), ready=False))
        assert training.end() < pipeline.READY_SECONDS + 0.5
        assert service.steps() == [1, 2]


def test_a_beat_is_sent_while_nothing_else_is(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "HEARTBEAT_SECONDS", 0.3)
    with server(takes) as service:
        training = train(service.url)
        training.steps(1)
        training.beat = HeartbeatRecord(5.0, 12.0, 3)
        time.sleep(1.5)
        beats = [record for record in service.taken if record["type"] == "heartbeat"]
        assert 3 <= len(beats) <= 6
        assert beats[0] == {"time": 5.0, "since_step": 12.0, "backwards": 3, "type": "heartbeat"}


def test_an_idle_sender_costs_next_to_no_processor_time(train: Train) -> None:
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
        window = Window(step(2))
        took = []
        for _ in range(2000):
            began = time.perf_counter()
            training.sender.put(window)
            took.append(time.perf_counter() - began)
        assert sorted(took)[1000] < 5e-6


def test_ended_senders_leave_no_thread_and_no_file_open(train: Train, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with server(says(500)) as service:
        place = SpoolLocation(tmp_path / "spool", service.url)
        for _ in range(3):
            training = train(service.url)
            training.steps(5, seconds=0.3)
            training.end()
    assert eventually(2, lambda: not running())
    for file in take_leftover_files(place):
        file.close()
    assert len(os.listdir("/proc/self/fd")) <= before
