"""Moves records from the training thread to the service or the disk, on background threads.

The training thread only appends to a bounded queue. The pipeline thread resolves the values of
queued records every 0.1 s (a tick) and adds the lines to the buffer. The uploader thread sends the
buffer to the service. Lines that are still in the buffer after a tick go to the disk. So a killed
process loses the records of its last tick, and those of the tick before if the service stopped
responding at that moment.

The first record, from any training thread, starts the pipeline thread, which starts the uploader.
Both block all signals of the process, which are for the threads of the script.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

from gradledger import guard
from gradledger.autostart import is_checked
from gradledger.delivery.background import BackgroundThread
from gradledger.delivery.buffer import RecordBuffer
from gradledger.delivery.encoding import encode
from gradledger.delivery.http_client import Client
from gradledger.delivery.spool import SpoolLocation
from gradledger.delivery.uploader import Uploader, records_text
from gradledger.on_finding import FindingHandler
from gradledger.records import (
    CheckpointRecord,
    EndRecord,
    EvalRecord,
    HeartbeatRecord,
    RunRecord,
    StepRecord,
)
from gradledger.stderr import OncePerTopic, write_line

QUEUE_STEPS = 4096  # records whose values have not been read
TICK_SECONDS = 0.1
READY_SECONDS = 1.0  # at the end, for values that have not arrived from the device
# How long the end of the process waits for the service, after the values have arrived
EXIT_SECONDS = 0.8  # then the rest goes to the disk, and a later process sends it
EXIT_SECONDS_UNANSWERED = 0.2  # if the current request has waited for long already
EXIT_SECONDS_UNSAVED = 5.0  # if the disk cannot store the rest

# Synchronous signals: the kernel delivers them to the thread that caused them.
FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")


class PendingRecord(Protocol):
    """A record whose values may not have arrived from the device."""

    @property
    def ready(self) -> bool:
        """Whether all values have arrived."""

    def resolve(self) -> StepRecord | EvalRecord | CheckpointRecord:
        """The record; waits for the values."""


class ResolvedRecord(NamedTuple):
    """A record that is complete."""

    record: EvalRecord | CheckpointRecord
    ready: bool = True

    def resolve(self) -> EvalRecord | CheckpointRecord:
        """The record."""
        return self.record


class Pipeline:
    """Accepts records from training threads and delivers them to the service, in order."""

    def __init__(
        self,
        client: Client,
        run_record: Callable[[], RunRecord],
        heartbeat: Callable[[], HeartbeatRecord | None],
        spool_location: SpoolLocation | None,
        finding_handler: FindingHandler,
        device_calls: threading.Lock | None = None,
    ) -> None:
        """``device_calls``: held by others while no call to a device is allowed."""
        messages = OncePerTopic()
        self._client = client
        self._buffer = RecordBuffer(run_record, spool_location, messages)
        self._uploader = Uploader(
            client, self._buffer, run_record, heartbeat, messages, finding_handler
        )
        self._queue: deque[PendingRecord] = deque()
        self._overflow = 0  # records for which the queue had no room
        self._stop = threading.Event()
        self._end_record: EndRecord | None = None
        self._thread: BackgroundThread | None = None
        self._lock = (
            threading.RLock()
        )  # to start the thread and to close; reentrant for signal handlers
        self._closed = False
        self._device_calls = device_calls or threading.Lock()
        self._pid = os.getpid()

    def put(self, pending: PendingRecord) -> None:
        """Queue a record. Called on a training thread: never waits."""
        if self._closed:
            return
        if len(self._queue) >= QUEUE_STEPS:
            self._overflow += 1
            return
        self._queue.append(pending)
        if self._thread is None:
            self._start()

    def close(self, end_record: EndRecord) -> None:
        """Deliver the remaining records or store them on disk, in bounded time; repeatable."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            first_call, self._closed = not self._closed, True
            self._end_record = self._end_record or end_record
        if self._thread is not None:
            self._stop.set()
            self._thread.join(READY_SECONDS + EXIT_SECONDS_UNSAVED + 1.0)
        elif first_call and self._queue:
            self._save()

    def abandon(self) -> None:
        """Drop everything in a forked child: it belongs to the parent."""
        self._closed = True
        self._queue.clear()
        self._buffer.abandon()

    def _start(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:  # other training threads may do the same
            if self._thread is not None or self._closed:
                return
            # If no thread can be started, `close` stores the records on disk.
            with suppress(RuntimeError), _signals_blocked():
                self._thread = BackgroundThread("pipeline", self._run)

    # ------------------------------------------------------------------ on the pipeline thread

    def _run(self) -> None:
        try:
            BackgroundThread("uploader", self._uploader.run)
        except RuntimeError:  # no thread can be started: all records go to the disk
            self._uploader.done.set()
        while not self._stop.wait(TICK_SECONDS):
            with guard.fail_open("the pipeline"):
                self._tick()
        with guard.fail_open("the pipeline"):
            self._finish()

    def _tick(self) -> None:
        waiting = len(self._buffer) > 0  # since the last tick
        self._resolve_ready()
        if waiting:
            self._buffer.spill()
        if len(self._buffer):
            self._uploader.wake()
        self._client.cut_if_late()

    def _resolve_ready(self) -> None:
        if not self._queue or not self._device_calls.acquire(timeout=TICK_SECONDS):
            return
        try:
            lines = self._resolved_lines()
        finally:
            self._device_calls.release()
        if lines:
            self._buffer.add(lines)

    def _resolved_lines(self) -> list[bytes]:
        lines: list[bytes] = []
        while self._queue and self._queue[0].ready:
            pending = self._queue.popleft()
            with guard.fail_open("a record"):
                record = pending.resolve()
                if isinstance(record, StepRecord):
                    record.dropped = self._dropped()
                lines.append(encode(record))
        return lines

    def _dropped(self) -> int:
        return self._overflow + self._buffer.dropped + self._uploader.refused

    # ------------------------------------------------------------------ the end

    def _finish(self) -> None:
        waiting = len(self._buffer) > 0  # since the last tick
        self._resolve_rest()
        if waiting:
            self._buffer.spill()
        self._uploader.finish()
        unanswered = self._uploader.unanswered
        self._uploader.done.wait(EXIT_SECONDS_UNANSWERED if unanswered else EXIT_SECONDS)
        self._buffer.spill()
        if self._buffer.in_memory():
            self._uploader.done.wait(EXIT_SECONDS_UNSAVED)
        self._client.end()
        self._report_unsent()
        self._buffer.close()

    def _save(self) -> None:
        """Store everything on disk, on the closing thread, because there is no other."""
        with guard.fail_open("the pipeline"):
            self._resolve_rest()
            self._buffer.spill()
            self._report_unsent()
            self._buffer.close()

    def _resolve_rest(self) -> None:
        self._wait_and_resolve()
        if self._end_record is not None:
            self._buffer.add([encode(self._end_record)])

    def _wait_and_resolve(self) -> None:
        end = time.monotonic() + READY_SECONDS
        self._resolve_ready()
        while self._queue and time.monotonic() < end:
            time.sleep(0.005)
            self._resolve_ready()
        self._overflow += len(self._queue)

    def _report_unsent(self) -> None:
        lost = self._buffer.in_memory()
        stored = len(self._buffer) - lost
        location, problem = self._buffer.location, self._uploader.problem or "no answer"
        if stored and location is not None and not is_checked():
            write_line(
                f"{records_text(stored)} not sent yet ({problem}). The next run that reaches "
                f"{location.url} sends them, or run `gradledger import {location.directory}`"
            )
        if lost:
            write_line(f"{records_text(lost)} lost: not sent ({problem}), and not stored on disk")


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals: a thread started in this context inherits the mask and receives none.

    Otherwise a script that blocks a signal in its own threads, to wait for it, would be killed.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    faults = {getattr(signal, name) for name in FAULTS if hasattr(signal, name)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # This call runs handlers of pending signals, whose exceptions propagate from here.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
