"""From closed windows to the service or the disk, on background threads.

The training thread only appends to a bounded queue. Ten times a second one thread reads the values
of what was queued and puts the lines into the backlog; the courier, another, speaks with the
service. What the courier has not brought away within a tick goes to the disk, so that a killed
process loses what it closed within the last tick, and within the one before it if the service
stopped answering just then.

There is one gathering thread, which starts the one courier: whichever training thread has the first
record. Both threads block all signals of the process, which are for the threads of the script.
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
from gradledger.delivery.background import BackgroundThread
from gradledger.delivery.buffer import Backlog
from gradledger.delivery.http_client import Client
from gradledger.delivery.spool import Place
from gradledger.delivery.stderr_messages import Notices
from gradledger.delivery.uploader import Courier
from gradledger.on_finding import Reaction
from gradledger.records import (
    CheckpointRecord,
    EndRecord,
    EvalRecord,
    HeartbeatRecord,
    RunRecord,
    StepRecord,
    encode,
)
from gradledger.stderr import write_line

QUEUE_STEPS = 4096  # closed windows whose values have not been read
TICK_SECONDS = 0.1
READY_SECONDS = 1.0  # at the end, for values that are on their way from a device
# How long the end of the process waits for the service, once the values are there
EXIT_SECONDS = 0.8  # then what is left goes to the disk, and a later process sends it
EXIT_SECONDS_UNANSWERED = 0.2  # if the service has let a batch wait for long already
EXIT_SECONDS_UNSAVED = 5.0  # if no disk takes it

# Raised by the thread that they are for: these cannot be left to another one.
FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")


class Pending(Protocol):
    """A record whose numbers may still be on their way."""

    @property
    def ready(self) -> bool:
        """Whether they have arrived."""

    def resolve(self) -> StepRecord | EvalRecord | CheckpointRecord:
        """The record; waits for the numbers."""


class Known(NamedTuple):
    """A record that waits for nothing."""

    record: EvalRecord | CheckpointRecord
    ready: bool = True

    def resolve(self) -> EvalRecord | CheckpointRecord:
        """The record."""
        return self.record


class Sender:
    """Takes records from the training thread and brings them to the service, in order."""

    def __init__(
        self,
        client: Client,
        speaker: Callable[[], RunRecord],
        pulse: Callable[[], HeartbeatRecord | None],
        place: Place | None,
        reaction: Reaction,
    ) -> None:
        notices = Notices()
        self._client = client
        self._backlog = Backlog(speaker, place, notices)
        self._courier = Courier(client, self._backlog, speaker, pulse, notices, reaction)
        self._queue: deque[Pending] = deque()
        self._overflow = 0  # windows for which the queue had no room
        self._stop = threading.Event()
        self._last: EndRecord | None = None
        self._thread: BackgroundThread | None = None
        self._lock = threading.RLock()  # held to start the thread and to close; a handler may close
        self._closed = False
        self._pid = os.getpid()

    def put(self, pending: Pending) -> None:
        """Called on a training thread: remember what to resolve, never wait."""
        if self._closed:
            return
        if len(self._queue) >= QUEUE_STEPS:
            self._overflow += 1
            return
        self._queue.append(pending)
        if self._thread is None:
            self._start()

    def close(self, last: EndRecord) -> None:
        """Deliver what is left, or leave it on the disk; bounded in time. Safe to call again."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            first, self._closed = not self._closed, True
            self._last = self._last or last
        if self._thread is not None:
            self._stop.set()
            self._thread.join(READY_SECONDS + EXIT_SECONDS_UNSAVED + 1.0)
        elif first and self._queue:
            self._save()

    def abandon(self) -> None:
        """In a forked child: nothing here is its own."""
        self._closed = True
        self._queue.clear()
        self._backlog.abandon()

    def _start(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:  # another training thread may be about to do the same
            if self._thread is not None or self._closed:
                return
            # it raises where no more threads are allowed: `close` saves the rest
            with suppress(RuntimeError), _signals_blocked():
                self._thread = BackgroundThread("sender", self._run)

    # ------------------------------------------------------------------ on the gathering thread

    def _run(self) -> None:
        try:
            BackgroundThread("courier", self._courier.run)
        except RuntimeError:  # no more threads are allowed: all of it goes to the disk
            self._courier.done.set()
        while not self._stop.wait(TICK_SECONDS):
            with guard.fail_open("the sender"):
                self._tick()
        with guard.fail_open("the sender"):
            self._finish()

    def _tick(self) -> None:
        late = len(self._backlog) > 0
        self._gather()
        if late:
            self._backlog.spill()
        if len(self._backlog):
            self._courier.wake()
        self._client.cut_if_late()

    def _gather(self) -> None:
        lines: list[bytes] = []
        while self._queue and self._queue[0].ready:
            pending = self._queue.popleft()
            with guard.fail_open("a record"):
                record = pending.resolve()
                if isinstance(record, StepRecord):
                    record.dropped = self._dropped()
                lines.append(encode(record))
        if lines:
            self._backlog.add(lines)

    def _dropped(self) -> int:
        return self._overflow + self._backlog.dropped + self._courier.refused

    # ------------------------------------------------------------------ the end

    def _finish(self) -> None:
        late = len(self._backlog) > 0
        self._gather_last()
        if late:
            self._backlog.spill()
        self._courier.finish()
        unanswered = self._courier.unanswered
        self._courier.done.wait(EXIT_SECONDS_UNANSWERED if unanswered else EXIT_SECONDS)
        self._backlog.spill()
        if self._backlog.in_memory():
            self._courier.done.wait(EXIT_SECONDS_UNSAVED)
        self._client.end()
        self._report_what_is_left()
        self._backlog.close()

    def _save(self) -> None:
        """Bring everything to the disk, on the thread that closes: there is no other."""
        with guard.fail_open("the sender"):
            self._gather_last()
            self._backlog.spill()
            self._report_what_is_left()
            self._backlog.close()

    def _gather_last(self) -> None:
        self._gather_all()
        if self._last is not None:
            self._backlog.add([encode(self._last)])

    def _gather_all(self) -> None:
        end = time.monotonic() + READY_SECONDS
        self._gather()
        while self._queue and time.monotonic() < end:
            time.sleep(0.005)
            self._gather()
        self._overflow += len(self._queue)

    def _report_what_is_left(self) -> None:
        lost, kept = self._backlog.in_memory(), len(self._backlog) - self._backlog.in_memory()
        place, why = self._backlog.place, self._courier.problem or "no answer"
        if kept and place is not None:
            write_line(
                f"{kept} records are not sent yet ({why}): the next run that reaches {place.url} "
                f"sends them, or `gradledger import {place.own}`"
            )
        if lost:
            write_line(f"{lost} records could not be sent ({why}), and no disk took them")


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A thread that starts in here inherits the mask, so no signal of the process goes to it.

    A script that blocks a signal in its own threads to wait for it would else be killed by it.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    faults = {getattr(signal, name) for name in FAULTS if hasattr(signal, name)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # This runs handlers of signals that have come, and what they raise leaves from here.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
