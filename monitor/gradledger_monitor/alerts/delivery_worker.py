"""Brings what is in the outbox to its channels, in a thread of its own.

Many messages are on their way at once, so that a receiver that hangs holds up nobody else's.
"""

from __future__ import annotations

import asyncio
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
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Span

log = logging.getLogger(__name__)

AT_ONCE = 32  # messages that are on their way
LOOK_EVERY_SECONDS = 1.0  # for what other processes left
LEASE_MARGIN = 10.0  # beyond the longest attempt, before others believe that we died
PRUNE_EVERY_SECONDS = 3_600.0
FINISH_SECONDS = 3.0  # at the end, for what is on its way
POINTS = 300  # of the chart in a picture

OnResult = Callable[[str, DeliveryResult, float], None]  # with seconds since it was created


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
    one: ClaimedAlert,
    options: DeliveryOptions,
    picture: Callable[[], bytes | None],
) -> DeliveryResult:
    """One attempt to send a message."""
    document, policy, timeout = one.document, options.policy, options.timeout
    if isinstance(channel, Apprise):
        image = await to_thread.run_sync(picture) if channel.image else None
        return await messengers.send(channel, document, image, policy, timeout)
    if isinstance(channel, Alertmanager):
        return await alertmanager.send(channel, document, policy, timeout, options.repeat_after)
    return await webhook.send(channel, one.id, document, policy, timeout, time.time())


@dataclass
class DeliveryWorker:
    """Plans and sends, until it is stopped."""

    store: Store
    make_composer: Callable[[], Composer]  # once the database is migrated
    options: DeliveryOptions
    on_result: OnResult | None = None
    now: Callable[[], float] = clock.now
    _stopping: bool = False
    _loop: asyncio.AbstractEventLoop | None = None
    _news: anyio.Event | None = None
    _on_the_way: int = 0
    _pruned: float = 0.0
    _thread: threading.Thread = field(init=False)

    @cached_property
    def composer(self) -> Composer:
        """What turns findings into messages."""
        return self.make_composer()

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="gradledger-alerts", daemon=True)

    def start(self) -> None:
        """Begin, in the background."""
        self._thread.start()

    def works(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Say that there may be something to tell. Any thread may."""
        loop, news = self._loop, self._news
        if loop is not None and news is not None and not loop.is_closed():
            loop.call_soon_threadsafe(news.set)

    def stop(self) -> None:
        """End; what is on its way gets a moment, and is sent again if that is not enough."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        self._loop, self._news = asyncio.get_running_loop(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            while not self._stopping:
                news = self._news = anyio.Event()
                try:
                    for one in await to_thread.run_sync(self._take):
                        tasks.start_soon(self._deliver, one)
                except Exception:  # the database may be away for a while; alerts must outlive that
                    log.exception("alerts could not look for what is to be told; they try again")
                with anyio.move_on_after(LOOK_EVERY_SECONDS):
                    await news.wait()
            tasks.cancel_scope.deadline = anyio.current_time() + FINISH_SECONDS

    def _take(self) -> list[ClaimedAlert]:
        """Say what is to be said, then claim what is due."""
        now = self.now()
        enqueue.enqueue_due(self.store, self.composer, now)
        if now - self._pruned > PRUNE_EVERY_SECONDS:
            self._pruned = now
            outbox.prune(self.store, now - self.options.keep_seconds)
        free = AT_ONCE - self._on_the_way
        claimed = outbox.claim(self.store, now, self.options.timeout + LEASE_MARGIN, free)
        self._on_the_way += len(claimed)
        return claimed

    async def _deliver(self, one: ClaimedAlert) -> None:
        try:
            outcome = await self._attempt(one)
            await to_thread.run_sync(self._finish, one, outcome)
        except Exception:  # its claim runs out, and it is tried again
            log.exception("alert %s could not be sent", one.id)
        finally:
            self._on_the_way -= 1
            self.wake()  # there is room again, and perhaps a next one of the same run

    async def _attempt(self, one: ClaimedAlert) -> DeliveryResult:
        roster = await to_thread.run_sync(self.composer.roster)
        channel = roster.channels.get(one.channel)
        if channel is None:
            return DeliveryResult("gone", "there is no such channel any more")
        return await send(channel, one, self.options, lambda: picture(self.store, one.document))

    def _finish(self, one: ClaimedAlert, result: DeliveryResult) -> None:
        now = self.now()
        delays = self.options.delays
        outbox.record_result(
            self.store, one, result, now, lambda n: next_attempt(delays, n, now, random.random())
        )
        if self.on_result is not None:
            self.on_result(one.channel, result, max(0.0, now - one.created))
        if result.outcome != "delivered":
            fields = {"alert": one.id, "channel": one.channel, "why": result.detail}
            log.warning("an alert did not arrive", extra={"fields": fields})


def picture(store: Store, document: Document) -> bytes | None:
    """A chart for the first finding of a message."""
    data = document["data"]
    if data["run"] is None or not data["findings"]:
        return None
    found = data["findings"][0]
    series = curves.curves(store, data["run"]["id"], Span(found["optimizer"]), points=POINTS)
    return chart_png.drawn(found["rule"], found["since_step"], series)
