"""The thread that speaks with the service: the backlog in order, then what others left behind.

A failing service is tried again after growing pauses, or when it asked to be; a batch that is too
large is cut. While nothing else is to be said and no step ends, a beat says that the process lives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gradledger import guard
from gradledger.delivery.buffer import Backlog
from gradledger.delivery.http_client import Answer, Client
from gradledger.delivery.spool import orphans
from gradledger.delivery.spool_file import SpoolFile, is_run
from gradledger.delivery.stderr_messages import Notices
from gradledger.on_finding import Reaction
from gradledger.records import HeartbeatRecord, RunRecord, encode

BATCH_LINES = 500
BATCH_BYTES = 8 * 2**20
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
SAID_AFTER_FAILURES = 7  # about 14 seconds
BEAT_SECONDS = 10.0
SILENT_SECONDS = 1.0  # without an answer
ORPHANS_SECONDS = 60.0  # between two looks for files of dead processes


class Courier:
    """Brings a backlog to the service, until it is told to finish."""

    def __init__(
        self,
        client: Client,
        backlog: Backlog,
        speaker: Callable[[], RunRecord],
        pulse: Callable[[], HeartbeatRecord | None],
        notices: Notices,
        reaction: Reaction,
    ) -> None:
        self._reaction, self._known = reaction, ""
        self._client, self._backlog, self._notices = client, backlog, notices
        self._speaker, self._pulse = speaker, pulse
        self._lines = BATCH_LINES
        self._failures = 0
        self._not_before = 0.0
        self._asked_to_wait = False
        self._look_at = 0.0  # when to look for orphans
        self._beat_at = 0.0  # when to beat again
        self._wake = threading.Event()
        self._finishing = False
        self.done = threading.Event()
        self.refused = 0
        self.problem = ""  # the last that there was

    @property
    def failing(self) -> bool:
        """Whether the last thing that the service did was to fail."""
        return self._failures > 0

    @property
    def unanswered(self) -> bool:
        """Whether the service has let a batch wait for long."""
        return self._client.waiting() > SILENT_SECONDS

    def wake(self) -> None:
        """There is something to bring."""
        self._wake.set()

    def finish(self) -> None:
        """Bring what is there, with one attempt, and end."""
        self._finishing = True
        self._wake.set()

    def run(self) -> None:
        """What the thread does."""
        while not self._finishing:
            self._wake.wait(self._pause())
            self._wake.clear()
            with guard.fail_open("delivery"):
                self._work()
        with guard.fail_open("delivery"):
            if not self._asked_to_wait or time.monotonic() >= self._not_before:
                self._deliver()
        self.done.set()
        self._client.close()

    def _pause(self) -> float:
        """Until the next attempt, or the next beat. Woken earlier, it looks again."""
        left = self._not_before - time.monotonic()
        return left if left > 0 else BEAT_SECONDS

    def _work(self) -> None:
        if time.monotonic() < self._not_before or not self._deliver():
            return
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + ORPHANS_SECONDS
            self._deliver_orphans()
        beat = self._pulse() if time.monotonic() >= self._beat_at else None
        if beat is not None:
            self._beat_at = time.monotonic() + BEAT_SECONDS
            self._hear(self._client.post([encode(self._speaker()), encode(beat)], self._asks))

    # ------------------------------------------------------------------ the backlog

    def _deliver(self) -> bool:
        """Send batches until nothing is left or the service fails."""
        while (batch := self._backlog.next(self._lines, BATCH_BYTES)) is not None:
            answer = self._client.post(batch.body, self._asks)
            if answer.fate == "retry":
                self._backlog.spill()
                self._hold(answer)
                return False
            if self._is_to_be_cut(answer):
                continue
            self.refused += self._accepted(answer)
            self._backlog.acknowledge(batch)
            self._hear(answer)
        return True

    @property
    def _asks(self) -> str | None:
        """What to ask the service for besides: news of findings, where anyone wants them."""
        return self._known if self._reaction.listens else None

    def _hear(self, answer: Answer) -> None:
        if answer.known is not None and answer.known != self._known:
            self._known = answer.known
            self._reaction.hear(answer.findings)

    def _is_to_be_cut(self, answer: Answer) -> bool:
        if answer.fate != "too_large" or self._lines == 1:
            return False
        self._lines = max(1, self._lines // 2)
        return True

    def _accepted(self, answer: Answer) -> int:
        """The service took a batch, all but what it will never take."""
        self._failures, self._not_before, self._asked_to_wait = 0, 0.0, False
        self._lines = BATCH_LINES
        refused = answer.refused or int(answer.fate == "too_large")
        if refused:
            text = f"the service refused {refused} records ({answer.problem})"
            self._notices.once("refused", text)
        return refused

    def _hold(self, answer: Answer) -> None:
        wait = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._asked_to_wait = answer.wait > 0
        self._not_before = time.monotonic() + max(wait, answer.wait)
        self._failures += 1
        self.problem = answer.problem
        if self._failures == SAID_AFTER_FAILURES or self._asked_to_wait:
            where = f"the service takes no records ({answer.problem})"
            self._notices.once("service", f"{where}; training goes on, they are sent later")

    # ------------------------------------------------------------------ what others left behind

    def _deliver_orphans(self) -> None:
        place = self._backlog.place
        for file in orphans(place) if place else ():
            try:
                whole = self._deliver_orphan(file)
            except OSError as error:
                self._notices.once("orphan", f"{file.path} cannot be read ({error})")
                whole = False
            file.remove() if whole else file.close()
            if len(self._backlog):  # what this process has to say goes first
                self._look_at = 0.0
            if len(self._backlog) or self.failing or self._finishing:
                return

    def _deliver_orphan(self, file: SpoolFile) -> bool:
        """Whether the service has all of it now. What it refused stays, under another name."""
        lines, refused = BATCH_LINES, 0
        while not self._finishing:
            batch = file.peek(lines, BATCH_BYTES)
            if not batch:
                if refused:
                    file.set_aside()
                return not refused
            answer = self._client.post(batch)
            if answer.fate == "retry":
                self._hold(answer)
                return False
            if answer.fate == "too_large" and lines > 1:
                lines //= 2
                continue
            refused += self._accepted(answer)
            file.advance(sum(not is_run(line) for line in batch))
        return False
