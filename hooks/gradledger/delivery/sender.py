"""From closed windows to the service or the disk, on background threads.

The training thread only appends to a bounded queue. Ten times a second one thread reads the values
of what was queued and puts the lines into the backlog; the courier, another, speaks with the
service. What the courier has not brought away within a tick goes to the disk, so that a killed
process loses what it closed within the last tick, and within the one before it if the service
stopped answering just then.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from gradledger import guard
from gradledger.delivery.backlog import Backlog
from gradledger.delivery.client import Client
from gradledger.delivery.courier import Courier
from gradledger.delivery.notices import Notices, say
from gradledger.delivery.spool import Place
from gradledger.reacting import Reaction
from gradledger.records import (
    BeatRecord,
    CheckpointRecord,
    EndRecord,
    EvalRecord,
    RunRecord,
    StepRecord,
    encode,
)

QUEUE_STEPS = 4096  # closed windows whose values have not been read
TICK_SECONDS = 0.1
READY_SECONDS = 1.0  # at the end, for values that are on their way from a device
# How long the end of the process waits for the service
EXIT_SECONDS = 5.0  # if it works, or if no disk holds what is left
EXIT_SECONDS_FAILING = 2.0
EXIT_SECONDS_UNANSWERED = 0.2  # if it has let a batch wait for long already


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
        pulse: Callable[[], BeatRecord | None],
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
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def put(self, pending: Pending) -> None:
        """Called on the training thread: remember what to resolve, never wait."""
        if len(self._queue) >= QUEUE_STEPS:
            self._overflow += 1
            return
        self._queue.append(pending)
        if self._thread is None:
            self._start()

    def close(self, last: EndRecord) -> None:
        """Deliver what is left, or leave it on the disk; bounded in time. Safe to call again."""
        if os.getpid() != self._pid or self._thread is None:
            return
        self._last = self._last or last
        self._stop.set()
        self._thread.join(READY_SECONDS + EXIT_SECONDS + 1.0)

    def abandon(self) -> None:
        """In a forked child: nothing here is its own."""
        self._backlog.abandon()

    def _start(self) -> None:
        if os.getpid() != self._pid:
            return
        bring = threading.Thread(target=self._courier.run, name="gradledger-courier", daemon=True)
        gather = threading.Thread(target=self._run, name="gradledger", daemon=True)
        with suppress(RuntimeError):  # the interpreter is going down
            bring.start()
            gather.start()
            self._thread = gather

    # ------------------------------------------------------------------ on the gathering thread

    def _run(self) -> None:
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
        self._gather_all()
        if self._last is not None:
            self._backlog.add([encode(self._last)])
        if late:
            self._backlog.spill()
        self._courier.finish()
        self._courier.done.wait(self._patience())
        self._backlog.spill()
        self._client.end()
        self._tell_what_is_left()
        self._backlog.close()

    def _gather_all(self) -> None:
        end = time.monotonic() + READY_SECONDS
        self._gather()
        while self._queue and time.monotonic() < end:
            time.sleep(0.005)
            self._gather()
        self._overflow += len(self._queue)

    def _patience(self) -> float:
        if not (self._courier.failing or self._courier.unanswered):
            return EXIT_SECONDS
        self._backlog.spill()
        if self._backlog.in_memory():
            return EXIT_SECONDS
        return EXIT_SECONDS_UNANSWERED if self._courier.unanswered else EXIT_SECONDS_FAILING

    def _tell_what_is_left(self) -> None:
        lost, kept = self._backlog.in_memory(), len(self._backlog) - self._backlog.in_memory()
        place, why = self._backlog.place, self._courier.problem or "no answer"
        if kept and place is not None:
            say(
                f"{kept} records are not sent yet ({why}): the next run that reaches {place.url} "
                f"sends them, or `gradledger import {place.own}`"
            )
        if lost:
            say(f"{lost} records could not be sent ({why}), and no disk took them")
