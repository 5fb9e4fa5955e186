"""A pipeline has one pair of threads, however many threads start it, close it or fork."""

from __future__ import annotations

import _thread
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gradledger import session
from gradledger.delivery.background import running
from gradledger.delivery.http_client import Client
from gradledger.delivery.pipeline import Pipeline
from gradledger.delivery.spool import SpoolLocation
from gradledger.on_finding import FindingHandler, Policy
from gradledger.records import EndRecord, RunRecord
from gradledger.settings import Settings
from helpers.batches import eventually
from helpers.batches import step as step_record
from helpers.misbehaving import server, takes
from helpers.patience import HANGS

from .test_pipeline import Pending

pytestmark = pytest.mark.usefixtures("patient")

THREADS, STEPS, ROUNDS = 8, 40, 25


def new_pipeline(url: str, folder: Path | None) -> Pipeline:
    """A pipeline as a session creates it."""
    run = RunRecord("night-1", "a run", optimizers=["SGD"])
    location = None if folder is None else SpoolLocation(folder, url)
    return Pipeline(
        Client(url), lambda: run, lambda: None, location, FindingHandler(Policy("off"), str, bool)
    )


def together(works: list[Callable[[], None]]) -> None:
    """Run each on a separate thread; all start at the same moment."""
    begin = threading.Barrier(len(works))
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        begin.wait()
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def alive() -> Counter[str]:
    """The number of pipeline threads, by name."""
    return Counter(running())


@pytest.fixture
def impatient() -> object:
    """Python switches threads as often as possible, so that every interleaving occurs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
def test_threads_with_simultaneous_first_records_start_one_pipeline(tmp_path: Path) -> None:
    with server(takes) as service:
        for number in range(ROUNDS):
            pipeline = new_pipeline(service.url, tmp_path)
            counts: list[Counter[str]] = []

            def put(
                thread: int, pipeline: Pipeline = pipeline, counts: list[Counter[str]] = counts
            ) -> None:
                for index in range(STEPS):
                    pipeline.put(Pending(step_record(1 + thread * STEPS + index)))
                counts.append(alive())

            service.taken.clear()
            together([lambda thread=thread: put(thread) for thread in range(THREADS)])  # type: ignore[misc]
            pipeline.close(EndRecord(9.0, [number]))
            assert all(count == 1 for names in counts for count in names.values())
            assert sorted(map(int, map(str, service.steps()))) == list(
                range(1, THREADS * STEPS + 1)
            )
            assert eventually(HANGS, lambda: not alive())


@pytest.mark.usefixtures("impatient")
def test_a_close_during_puts_loses_no_earlier_record(
    tmp_path: Path,
) -> None:
    with server(takes) as service:
        for number in range(ROUNDS):
            service.taken.clear()
            pipeline = new_pipeline(service.url, tmp_path)
            for index in range(STEPS):
                pipeline.put(Pending(step_record(1 + index)))

            def late(pipeline: Pipeline = pipeline) -> None:
                for index in range(STEPS):
                    pipeline.put(Pending(step_record(1 + STEPS + index)))

            def close(pipeline: Pipeline = pipeline, number: int = number) -> None:
                pipeline.close(EndRecord(9.0, [number]))

            together([late, late, close, close, close])
            arrived = Counter(service.steps())
            assert all(arrived[number] == 1 for number in range(1, STEPS + 1))
            ends = [record for record in service.taken if record["type"] == "end"]
            assert ends == [{"type": "end", "time": 9.0, "steps": [number]}]
            assert eventually(HANGS, lambda: not alive())
    assert list(tmp_path.rglob("*.jsonl")) == []


def forked(work: Callable[[], bool]) -> bool:
    """Whether ``work`` succeeds in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.usefixtures("impatient")
def test_a_child_forked_while_pipelines_start_has_none_and_accepts_nothing(
    tmp_path: Path,
) -> None:
    with server(takes) as service:
        for _ in range(ROUNDS):
            pipeline = new_pipeline(service.url, tmp_path)

            def in_child(pipeline: Pipeline = pipeline) -> bool:
                pipeline.abandon()  # as the session does after a fork
                pipeline.put(Pending(step_record(999)))
                pipeline.close(EndRecord(9.0, [0]))
                return not pipeline._queue and not alive()

            def fork(in_child: Callable[[], bool] = in_child) -> None:
                assert all(forked(in_child) for _ in range(2))

            def put(first: int, pipeline: Pipeline = pipeline) -> None:
                for index in range(STEPS):
                    pipeline.put(Pending(step_record(first + index)))

            service.taken.clear()
            together([lambda: put(1), fork, lambda: put(1 + STEPS)])
            pipeline.close(EndRecord(9.0, [0]))
            assert Counter(service.steps()) == Counter(range(1, 1 + 2 * STEPS))


@pytest.mark.usefixtures("impatient")
def test_threads_that_start_a_session_simultaneously_get_the_same_one() -> None:
    for _ in range(5):
        got: list[session.Session] = []
        settings = [Settings(url="http://127.0.0.1:9", spool=None) for _ in range(THREADS)]
        works = [partial(session.start, each_settings) for each_settings in settings]
        together([lambda work=work, got=got: got.append(work()) for work in works])  # type: ignore[misc]
        assert len({id(one) for one in got}) == 1
        records: list[object] = []

        def identify(opened: session.Session = got[0], records: list[object] = records) -> None:
            opened._identify()
            records.append(opened._run)

        together([identify] * THREADS)
        assert len({id(record) for record in records}) == 1
        got[0].close()


# ---------------------------------------------------------------------- no threads available


def test_if_no_thread_can_be_started_all_records_go_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(body: Callable[[], None], args: tuple[()]) -> None:
        raise RuntimeError("can't start new thread")

    pipeline = new_pipeline("http://127.0.0.1:9", tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", refuse)
        for number in (1, 2, 3):
            pipeline.put(Pending(step_record(number)))
        pipeline.close(EndRecord(9.0, [3]))
    (file,) = tmp_path.rglob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line.get("step", line["type"]) for line in lines] == ["run", 1, 2, 3, "end"]


def test_if_the_uploader_cannot_be_started_all_records_go_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = _thread.start_new_thread

    def refuse(body: Callable[[], None], args: tuple[()]) -> None:
        if body.__self__.name == "uploader":  # type: ignore[attr-defined]
            raise RuntimeError("can't start new thread")
        start(body, args)

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    pipeline = new_pipeline("http://127.0.0.1:9", tmp_path)
    pipeline.put(Pending(step_record(1)))
    pipeline.close(EndRecord(9.0, [1]))
    (file,) = tmp_path.rglob("*.jsonl")
    assert file.read_text().count('"type":"step"') == 1


def test_a_script_that_joins_all_threads_does_not_join_ours(tmp_path: Path) -> None:
    before = threading.enumerate()
    pipeline = new_pipeline("http://127.0.0.1:9", tmp_path)
    pipeline.put(Pending(step_record(1)))
    assert eventually(HANGS, lambda: running() == ["pipeline", "uploader"])
    assert threading.enumerate() == before
    assert threading.active_count() == len(before)
    pipeline.close(EndRecord(9.0, [1]))
    assert eventually(HANGS, lambda: not running())
