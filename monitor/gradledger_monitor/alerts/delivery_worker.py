"""Sends the messages in the outbox to their channels, in a separate thread.

Many messages are in flight at once, so that a receiver that hangs does not delay other channels.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import anyio
from anyio import to_thread

from gradledger_monitor.alerts import chart_png, enqueue
from gradledger_monitor.alerts.backoff import DELAYS, next_attempt
from gradledger_monitor.alerts.channels import alertmanager, messengers, webhook
from gradledger_monitor.alerts.configuration import Alertmanager, AnyChannel, Apprise
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.alerts.enqueue import Composer
from gradledger_monitor.alerts.payload import Document
from gradledger_monitor.common import clock
from gradledger_monitor.store.alerts import outbox
from gradledger_monitor.store.alerts.outbox import ClaimedAlert, DeliveryResult
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.failures import log_failure
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Span

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 32  # messages
POLL_SECONDS = 1.0  # for messages that other processes did not finish
LEASE_MARGIN = 10.0  # seconds beyond the longest attempt, until other processes may take a message
PRUNE_EVERY_SECONDS = 3_600.0
SHUTDOWN_SECONDS = 3.0  # for messages in flight
CHART_POINTS = 300

OnResult = Callable[[str, DeliveryResult, float], None]  # channel, result, seconds since creation


@dataclass(frozen=True)
class DeliveryOptions:
    """How messages are sent."""

    policy: EgressPolicy
    timeout: float
    repeat_after: float
    delays: Sequence[float] = DELAYS
    keep_seconds: float = 90 * 86_400.0


async def send(
    channel: AnyChannel,
    message: ClaimedAlert,
    options: DeliveryOptions,
    chart: Callable[[], bytes | None],
) -> DeliveryResult:
    """Make one attempt to send a message."""
    document, policy, timeout = message.document, options.policy, options.timeout
    if isinstance(channel, Apprise):
        image = await to_thread.run_sync(chart) if channel.image else None
        return await messengers.send(channel, document, image, policy, timeout)
    if isinstance(channel, Alertmanager):
        return await alertmanager.send(channel, document, policy, timeout, options.repeat_after)
    return await webhook.send(channel, message.id, document, policy, timeout, time.time())


@dataclass
class DeliveryWorker:
    """Plans and sends messages, in a thread, until it is stopped."""

    store: Store
    make_composer: Callable[[], Composer]  # called once the database is migrated
    options: DeliveryOptions
    on_result: OnResult | None = None
    now: Callable[[], float] = clock.now
    _stopping: bool = False
    _loop: asyncio.AbstractEventLoop | None = None
    _wakeup: anyio.Event | None = None
    _in_flight: int = 0
    _pruned: float = 0.0
    _thread: threading.Thread = field(init=False)

    @cached_property
    def composer(self) -> Composer:
        """What messages are composed with."""
        return self.make_composer()

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="gradledger-alerts", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Plan now, because something changed. Callable from any thread."""
        loop, wakeup = self._loop, self._wakeup
        if loop is not None and wakeup is not None and not loop.is_closed():
            loop.call_soon_threadsafe(wakeup.set)

    def stop(self) -> None:
        """Stop. Messages that take longer than ``SHUTDOWN_SECONDS`` are sent again later."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        self._loop, self._wakeup = asyncio.get_running_loop(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            while not self._stopping:
                wakeup = self._wakeup = anyio.Event()  # before planning: no call of wake() is lost
                try:
                    for message in await to_thread.run_sync(self._claim):
                        tasks.start_soon(self._deliver, message)
                except Exception as error:  # the thread must survive an outage of the database
                    what = f"planning alerts failed and is tried again in {POLL_SECONDS:g} s"
                    log_failure(log, error, what)
                with anyio.move_on_after(POLL_SECONDS):
                    await wakeup.wait()
            tasks.cancel_scope.deadline = anyio.current_time() + SHUTDOWN_SECONDS

    def _claim(self) -> list[ClaimedAlert]:
        """Put new messages into the outbox, then claim those that are due."""
        now = self.now()
        enqueue.enqueue_due(self.store, self.composer, now)
        if now - self._pruned > PRUNE_EVERY_SECONDS:
            self._pruned = now
            outbox.prune(self.store, now - self.options.keep_seconds)
        free = MAX_IN_FLIGHT - self._in_flight
        claimed = outbox.claim(self.store, now, self.options.timeout + LEASE_MARGIN, free)
        self._in_flight += len(claimed)
        return claimed

    async def _deliver(self, message: ClaimedAlert) -> None:
        try:
            result = await self._attempt(message)
            await to_thread.run_sync(self._finish, message, result)
        except Exception:  # its claim expires, and then it is retried
            log.exception("sending alert %s failed", message.id)
        finally:
            self._in_flight -= 1
            self.wake()  # a slot is free, and the next message of the same run may be due

    async def _attempt(self, message: ClaimedAlert) -> DeliveryResult:
        roster = await to_thread.run_sync(self.composer.roster)
        channel = roster.channels.get(message.channel)
        if channel is None:
            return DeliveryResult("gone", f"channel {message.channel!r} no longer exists")
        chart = functools.partial(finding_chart, self.store, message.document)
        return await send(channel, message, self.options, chart)

    def _finish(self, message: ClaimedAlert, result: DeliveryResult) -> None:
        now = self.now()
        delays = self.options.delays
        outbox.record_result(
            self.store,
            message,
            result,
            now,
            lambda failures: next_attempt(delays, failures, now, random.random()),
        )
        if self.on_result is not None:
            self.on_result(message.channel, result, max(0.0, now - message.created))
        if result.outcome != "delivered":
            fields = {"alert": message.id, "channel": message.channel, "reason": result.detail}
            log.warning("alert not delivered", extra={"fields": fields})


def finding_chart(store: Store, document: Document) -> bytes | None:
    """A chart of the first finding in a message, as a PNG."""
    data = document["data"]
    if data["run"] is None or not data["findings"]:
        return None
    finding = data["findings"][0]
    span = Span(finding["optimizer"])
    series = curves.curves(store, data["run"]["id"], span, points=CHART_POINTS)
    return chart_png.draw(finding["rule"], finding["since_step"], series)
