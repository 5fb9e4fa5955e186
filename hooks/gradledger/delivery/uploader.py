"""The uploader thread: sends the buffer in order, then the spool files of ended processes.

It retries a failing service after growing pauses, or after the pause that the service requested,
and splits a batch that is too large. While no step ends and nothing else is sent, it sends
heartbeats, which show that the process is running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gradledger import guard
from gradledger.delivery.buffer import RecordBuffer
from gradledger.delivery.encoding import encode
from gradledger.delivery.http_client import Client, UploadResult
from gradledger.delivery.run_report import RunState
from gradledger.delivery.spool import take_leftover_files
from gradledger.delivery.spool_file import SpoolFile, is_run
from gradledger.on_finding import FindingHandler
from gradledger.records import HeartbeatRecord, RunRecord
from gradledger.stderr import OncePerTopic

BATCH_LINES = 500
BATCH_BYTES = 8 * 2**20
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
REPORT_AFTER_FAILURES = 7  # about 14 seconds
HEARTBEAT_SECONDS = 10.0
UNANSWERED_SECONDS = 1.0
LEFTOVER_FILES_SECONDS = 60.0  # between two searches for spool files of ended processes


class Uploader:
    """Sends the records of a buffer to the service until ``finish`` is called."""

    def __init__(
        self,
        client: Client,
        buffer: RecordBuffer,
        run_record: Callable[[], RunRecord],
        heartbeat: Callable[[], HeartbeatRecord | None],
        messages: OncePerTopic,
        finding_handler: FindingHandler,
    ) -> None:
        self._client, self._buffer, self._messages = client, buffer, messages
        self._run_record, self._heartbeat = run_record, heartbeat
        self._finding_handler, self._last_findings_id = finding_handler, ""
        self._batch_lines = BATCH_LINES
        self._failures = 0
        self._not_before = 0.0
        self._asked_to_wait = False
        self._next_search = 0.0  # for leftover files
        self._next_heartbeat = 0.0
        self._wake = threading.Event()
        self._finishing = False
        self.done = threading.Event()
        self.refused = 0
        self.problem = ""  # the last one

    @property
    def failing(self) -> bool:
        """Whether the last request failed."""
        return self._failures > 0

    @property
    def unanswered(self) -> bool:
        """Whether the current request has waited for a response for long."""
        return self._client.waiting() > UNANSWERED_SECONDS

    def wake(self) -> None:
        """Send what the buffer holds now."""
        self._wake.set()

    def finish(self) -> None:
        """Make one more attempt, then end the thread."""
        self._finishing = True
        self._wake.set()

    def run(self) -> None:
        """The body of the thread."""
        while not self._finishing:
            self._wake.wait(self._pause())
            self._wake.clear()
            with guard.fail_open("delivery"):
                self._work()
        with guard.fail_open("delivery"):
            may_send = not self._asked_to_wait or time.monotonic() >= self._not_before
            if may_send and self._send_buffer():
                self._finding_handler.report_end(self._request_state)
        self.done.set()
        self._client.close()

    def _pause(self) -> float:
        """Seconds until the next attempt or heartbeat; ``wake`` may end the pause earlier."""
        remaining = self._not_before - time.monotonic()
        return remaining if remaining > 0 else HEARTBEAT_SECONDS

    def _work(self) -> None:
        if time.monotonic() < self._not_before or not self._send_buffer():
            return
        if time.monotonic() >= self._next_search:
            self._next_search = time.monotonic() + LEFTOVER_FILES_SECONDS
            self._send_leftover_files()
        heartbeat = self._heartbeat() if time.monotonic() >= self._next_heartbeat else None
        if heartbeat is not None:
            self._next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
            lines = [encode(self._run_record()), encode(heartbeat)]
            self._handle_findings(self._client.post(lines, self._findings_id))

    # ------------------------------------------------------------------ the buffer

    def _send_buffer(self) -> bool:
        """Send batches until the buffer is empty (True) or the service fails (False)."""
        while (batch := self._buffer.next(self._batch_lines, BATCH_BYTES)) is not None:
            result = self._client.post(batch.lines, self._findings_id)
            if result.outcome == "retry":
                self._buffer.spill()
                self._delay_retry(result)
                return False
            if result.outcome == "too_large" and self._batch_lines > 1:
                self._batch_lines //= 2
                continue
            self.refused += self._accept(result)
            self._buffer.acknowledge(batch)
            self._handle_findings(result)
        return True

    @property
    def _findings_id(self) -> str | None:
        """The id with which to request findings; None if the policy needs none."""
        return self._last_findings_id if self._finding_handler.enabled else None

    def _request_state(self) -> RunState | None:
        """The current state of the run; None if the service does not answer."""
        result = self._client.post([encode(self._run_record())], self._findings_id)
        self._handle_findings(result)
        return result.run

    def _handle_findings(self, result: UploadResult) -> None:
        self._finding_handler.on_reply(result.run)
        if result.findings_id is not None and result.findings_id != self._last_findings_id:
            self._last_findings_id = result.findings_id
            self._finding_handler.on_findings(result.findings)

    def _accept(self, result: UploadResult) -> int:
        """Reset the retry state; report and return the number of refused records."""
        self._failures, self._not_before, self._asked_to_wait = 0, 0.0, False
        self._batch_lines = BATCH_LINES
        refused = result.refused or int(result.outcome == "too_large")
        if refused:
            text = f"the service refused {records_text(refused)} ({result.problem})"
            self._messages.write("refused", text)
        return refused

    def _delay_retry(self, result: UploadResult) -> None:
        backoff = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._asked_to_wait = result.retry_after > 0
        self._not_before = time.monotonic() + max(backoff, result.retry_after)
        self._failures += 1
        self.problem = result.problem
        if self._failures == REPORT_AFTER_FAILURES or self._asked_to_wait:
            text = f"cannot send records to the service ({result.problem})"
            self._messages.write("service", f"{text}; training goes on, and sending is retried")

    # ------------------------------------------------------------------ leftover files

    def _send_leftover_files(self) -> None:
        location = self._buffer.location
        for file in take_leftover_files(location) if location else ():
            try:
                complete = self._send_file(file)
            except OSError as error:
                self._messages.write("leftover file", f"cannot read {file.path} ({error})")
                complete = False
            file.remove() if complete else file.close()
            if len(self._buffer):  # the records of this process go first
                self._next_search = 0.0
            if len(self._buffer) or self.failing or self._finishing:
                return

    def _send_file(self, file: SpoolFile) -> bool:
        """Whether the service stored all records; a file with refused records is renamed."""
        batch_lines, refused = BATCH_LINES, 0
        while not self._finishing:
            lines = file.peek(batch_lines, BATCH_BYTES)
            if not lines:
                if refused:
                    file.mark_refused()
                return not refused
            result = self._client.post(lines)
            if result.outcome == "retry":
                self._delay_retry(result)
                return False
            if result.outcome == "too_large" and batch_lines > 1:
                batch_lines //= 2
                continue
            refused += self._accept(result)
            file.advance(sum(not is_run(line) for line in lines))
        return False


def records_text(count: int) -> str:
    """``1 record``, ``2 records``."""
    return "1 record" if count == 1 else f"{count} records"
