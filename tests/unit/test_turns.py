"""Batches go before judging, and judging goes on all the same."""

from __future__ import annotations

import threading
import time

from gradledger_monitor.ingest.priority import AT_ONCE, MOST, IngestPriority


def aside(turns: IngestPriority) -> float:
    """Seconds for which a judge that went on for long enough steps aside."""
    time.sleep(2 * AT_ONCE)
    began = time.perf_counter()
    turns.yield_to_batches()
    return time.perf_counter() - began


def test_a_judge_alone_never_waits() -> None:
    turns = IngestPriority()
    assert max(aside(turns) for _ in range(20)) < AT_ONCE


def test_a_judge_waits_while_a_batch_is_taken_in_and_no_longer() -> None:
    turns = IngestPriority()
    turns.yield_to_batches()
    over = threading.Event()

    def take_in() -> None:
        with turns.batch():
            time.sleep(MOST / 2)
        over.set()

    thread = threading.Thread(target=take_in)
    with turns.batch():  # so that it is known to have begun
        thread.start()
        time.sleep(MOST / 4)
    turns.yield_to_batches()
    assert over.is_set()
    thread.join()


def test_batches_without_end_do_not_stop_a_judge() -> None:
    turns = IngestPriority()
    turns.yield_to_batches()
    with turns.batch():
        waits = [aside(turns) for _ in range(3)]
    assert all(AT_ONCE < wait < 2 * MOST for wait in waits)
