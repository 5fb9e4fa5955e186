"""The parts of alerts put together, for the service and for the command line."""

from __future__ import annotations

from functools import cached_property

from gradledger_monitor.alerts import payload, roster
from gradledger_monitor.alerts.delivery_worker import (
    DeliveryOptions,
    DeliveryWorker,
    OnResult,
    picture,
    send,
)
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.alerts.enqueue import Composer
from gradledger_monitor.alerts.links import Links
from gradledger_monitor.alerts.roster import Roster
from gradledger_monitor.alerts.settings import AlertSettings
from gradledger_monitor.store.alerts import channels, outbox
from gradledger_monitor.store.alerts.outbox import DeliveryResult
from gradledger_monitor.store.database import Store

LINK_KEY = "alert links"


class Alerts:
    """What the settings and the database say of alerts."""

    def __init__(self, settings: AlertSettings, base: str, store: Store) -> None:
        self._settings, self._base, self._store = settings, base, store
        self.options = DeliveryOptions(
            policy=EgressPolicy.allowing(settings.alert_networks),
            timeout=settings.alert_timeout,
            repeat_after=settings.alert_repeat_after,
            delays=settings.alert_retries,
            keep_seconds=settings.alert_keep_days * 86_400,
        )

    def roster(self) -> Roster:
        """All channels and routes, as they are now."""
        settings = self._settings
        return roster.load(self._store, settings.alert_channels, settings.alert_routes)

    @cached_property
    def links(self) -> Links:
        """Needs the database as this version knows it."""
        settings = self._settings
        key = channels.key(self._store, LINK_KEY)
        return Links(self._base, key, settings.alert_link_days)

    def delivery_worker(self, on_result: OnResult) -> DeliveryWorker:
        """What plans and sends, once it is started."""
        return DeliveryWorker(self._store, self.composer, self.options, on_result)

    def composer(self) -> Composer:
        """What turns findings into messages."""
        settings = self._settings
        return Composer(self._base, self.links, settings.alert_timing, self.roster)

    async def send_test(self, channel: str, now: float) -> tuple[str, DeliveryResult]:
        """Send a test to a channel here and now: its id, and what became of it. Raises KeyError."""
        target = self.roster().channels[channel]
        document = payload.test(self._base, now)
        one = outbox.enqueue_claimed(self._store, channel, document, now)
        outcome = await send(target, one, self.options, lambda: picture(self._store, document))
        outbox.record_result(self._store, one, outcome, now, lambda _: None)
        return one.id, outcome
