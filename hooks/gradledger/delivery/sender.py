"""The background thread: resolves open records, batches their lines, and delivers them.

The training thread only appends to a bounded queue. What the bound drops is counted, and the
count travels in every later record.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from gradledger import guard
from gradledger.delivery.client import Client
from gradledger.records import StepRecord, encode

QUEUE_STEPS = 4096  # closed windows that wait to be resolved
BUFFER_BYTES = 64 * 2**20  # encoded lines that wait for the service
BATCH_LINES = 500
BATCH_BYTES = 8 * 2**20
TICK_SECONDS = 0.1
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
EXIT_SECONDS = 5.0

Produce = Callable[[], StepRecord]


class Sender:
    """Takes steps from the training thread and brings them to the service, in order."""

    def __init__(self, client: Client, head: Callable[[], bytes]) -> None:
        self._client, self._head = client, head
        self._queue: deque[Produce] = deque()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self.dropped = 0
        self._failures = 0
        self._not_before = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._told = False

    def put(self, produce: Produce) -> None:
        """Called on the training thread: remember what to resolve, never wait."""
        if len(self._queue) >= QUEUE_STEPS:
            self.dropped += 1
            return
        self._queue.append(produce)
        if self._thread is None:
            self._start()

    def put_line(self, line: bytes) -> None:
        """A line that is ready to go."""
        self._keep(line)
        if self._thread is None:
            self._start()

    def close(self, last: bytes | None = None, seconds: float = EXIT_SECONDS) -> int:
        """Deliver what is left, for at most ``seconds``; returns how many lines remain unsent."""
        if os.getpid() != self._pid or self._thread is None:
            return 0
        self._last, self._deadline = last, time.monotonic() + seconds
        self._stop.set()
        self._thread.join(seconds + 1.0)
        return len(self._lines) + len(self._queue)

    def _start(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child, a DataLoader worker for instance, stays silent
        thread = threading.Thread(target=self._run, name="gradledger", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # the interpreter is going down
        self._thread = thread

    # ------------------------------------------------------------------ on the background thread

    def _run(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            with guard.fail_open("the sender"):
                self._resolve()
                if time.monotonic() >= self._not_before:
                    self._deliver()
        with guard.fail_open("the sender"):
            self._finish()

    def _finish(self) -> None:
        self._resolve()
        if self._last is not None:
            self._keep(self._last)
        while self._lines and time.monotonic() < self._deadline:
            if not self._deliver():
                time.sleep(TICK_SECONDS)
        self._client.close()

    def _resolve(self) -> None:
        while self._queue:
            produce = self._queue.popleft()
            with guard.fail_open("a record"):
                record = produce()
                record.dropped = self.dropped
                self._keep(encode(record))

    def _keep(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        while self._bytes > BUFFER_BYTES:
            self._bytes -= len(self._lines.popleft())
            self.dropped += 1

    def _deliver(self) -> bool:
        """Send batches until nothing is left or the service fails."""
        size = BATCH_LINES
        while self._lines:
            batch = self._batch(size)
            answer = self._client.post([self._head(), *batch])
            if answer.fate == "retry":
                self._hold(answer.problem)
                return False
            if answer.fate == "too_large" and len(batch) > 1:
                size = max(1, len(batch) // 2)
                continue
            self._accepted(batch, answer.refused, answer.problem)
        return True

    def _batch(self, most: int) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        for line in self._lines:
            if len(batch) == most or size > BATCH_BYTES:
                break
            batch.append(line)
            size += len(line)
        return batch

    def _accepted(self, batch: list[bytes], refused: int, problem: str) -> None:
        for _ in batch:
            self._bytes -= len(self._lines.popleft())
        self._failures, self._not_before = 0, 0.0
        if refused:
            self.dropped += refused
            self._tell(f"the service refused {refused} records ({problem})")

    def _hold(self, problem: str) -> None:
        wait = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._not_before = time.monotonic() + wait
        self._failures += 1
        if self._failures == len(BACKOFF_SECONDS):
            self._tell(f"the service cannot be reached ({problem}); training goes on, will retry")

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            sys.stderr.write(f"gradledger: {text}\n")
