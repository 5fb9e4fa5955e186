"""Batches are ingested before runs are evaluated, and the evaluator is never stopped for long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from gradledger_monitor.ingest import priority
from gradledger_monitor.ingest.priority import (
    MAX_WAIT_SECONDS,
    MIN_RUN_SECONDS,
    QUIET_SECONDS,
    WAIT_RATIO,
    IngestPriority,
)


class Clock:
    """Time that passes only where a thread would run or wait."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Pass some time."""
        self.now += seconds


class Evaluator:
    """An evaluator that has just waited, or has had no reason to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(priority, "time", self.clock)
        self.priority = IngestPriority()
        self.during_wait: Callable[[], None] = lambda: None
        evaluator = self

        class Idle(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                evaluator.during_wait()
                if not self.is_set():
                    evaluator.clock.sleep(timeout or 0.0)
                return self.is_set()

        self.priority._idle = Idle()
        self.priority._idle.set()
        self.priority.yield_to_batches()

    def waits(self, run_seconds: float) -> float:
        """The seconds that it waits after it has run."""
        self.clock.sleep(run_seconds)
        before = self.clock.now
        self.priority.yield_to_batches()
        return self.clock.now - before


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> Evaluator:
    return Evaluator(monkeypatch)


def test_an_evaluator_alone_never_waits(evaluator: Evaluator) -> None:
    assert [evaluator.waits(seconds) for seconds in (0.0, MIN_RUN_SECONDS, 1.0)] == [0, 0, 0]


def test_an_evaluator_waits_while_a_batch_is_ingested_and_no_longer(evaluator: Evaluator) -> None:
    with ExitStack() as batch:
        batch.enter_context(evaluator.priority.batch())
        evaluator.during_wait = batch.close
        assert evaluator.waits(1.0) == pytest.approx(QUIET_SECONDS)


def test_endless_batches_do_not_stop_the_evaluator(evaluator: Evaluator) -> None:
    with evaluator.priority.batch():
        assert evaluator.waits(MIN_RUN_SECONDS / 2) == 0
        assert evaluator.waits(MIN_RUN_SECONDS / 2) == pytest.approx(WAIT_RATIO * MIN_RUN_SECONDS)
        assert evaluator.waits(10.0) == pytest.approx(MAX_WAIT_SECONDS)
