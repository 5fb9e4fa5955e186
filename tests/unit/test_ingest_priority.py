"""Batches are ingested before runs are evaluated, and the evaluator is never stopped for long."""

from __future__ import annotations

import threading
import time

from gradledger_monitor.ingest.priority import MAX_WAIT_SECONDS, MIN_RUN_SECONDS, IngestPriority


def wait_seconds(priority: IngestPriority) -> float:
    """Seconds that an evaluator waits which ran for long enough to be asked to."""
    time.sleep(2 * MIN_RUN_SECONDS)
    began = time.perf_counter()
    priority.yield_to_batches()
    return time.perf_counter() - began


def test_an_evaluator_alone_never_waits() -> None:
    priority = IngestPriority()
    assert max(wait_seconds(priority) for _ in range(20)) < MIN_RUN_SECONDS


def test_an_evaluator_waits_while_a_batch_is_ingested_and_no_longer() -> None:
    priority = IngestPriority()
    priority.yield_to_batches()
    done = threading.Event()

    def ingest() -> None:
        with priority.batch():
            time.sleep(MAX_WAIT_SECONDS / 2)
        done.set()

    thread = threading.Thread(target=ingest)
    with priority.batch():  # so that the evaluator waits from the start
        thread.start()
        time.sleep(MAX_WAIT_SECONDS / 4)
    priority.yield_to_batches()
    assert done.is_set()
    thread.join()


def test_endless_batches_do_not_stop_the_evaluator() -> None:
    priority = IngestPriority()
    priority.yield_to_batches()
    with priority.batch():
        waits = [wait_seconds(priority) for _ in range(3)]
    assert all(MIN_RUN_SECONDS < wait < 2 * MAX_WAIT_SECONDS for wait in waits)
