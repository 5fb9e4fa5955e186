"""Puts the parts of alerts together, for the service and for the command line."""

from __future__ import annotations

from functools import cached_property

from gradledger_monitor.alerts import payload, roster
from gradledger_monitor.alerts.delivery_worker import (
    DeliveryOptions,
    DeliveryWorker,
    OnResult,
    finding_chart,
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
    """The alerts of one service, as the settings and the database configure them."""

    def __init__(self, settings: AlertSettings, base: str, store: Store) -> None:
        self._settings, self._base, self._store = settings, base, store
        self.options = DeliveryOptions(
            policy=EgressPolicy.allowing(settings.alert_networks),
            timeout=settings.alert_timeout,
            repeat_after=settings.alert_repeat_after,
            delays=settings.alert_retries,
            keep_seconds=settings.alert_keep_days * 86_400,
        )

    def register_channels(self, now: float) -> None:
        """Store which channels the settings have: a new one starts now."""
        names = [channel.name for channel in self._settings.alert_channels]
        channels.register(self._store, names, now)

    def roster(self) -> Roster:
        """All channels and routes, as they are now."""
        settings = self._settings
        return roster.load(self._store, settings.alert_channels, settings.alert_routes)

    @cached_property
    def links(self) -> Links:
        """Links in messages. The database must be migrated: their key is stored in it."""
        settings = self._settings
        key = channels.key(self._store, LINK_KEY)
        return Links(self._base, key, settings.alert_link_days)

    def delivery_worker(self, on_result: OnResult) -> DeliveryWorker:
        """A worker that plans and sends as soon as it is started."""
        return DeliveryWorker(
            store=self._store,
            make_composer=self.composer,
            options=self.options,
            on_result=on_result,
        )

    def composer(self) -> Composer:
        """What messages are composed with."""
        timing = self._settings.alert_timing
        return Composer(base=self._base, links=self.links, timing=timing, roster=self.roster)

    async def send_test(self, channel: str, now: float) -> tuple[str, DeliveryResult]:
        """Send a test message to a channel; return its id and the result. Raises KeyError."""
        target = self.roster().channels[channel]
        document = payload.test_document(self._base, now)
        message = outbox.enqueue_claimed(self._store, channel, document, now)
        result = await send(
            target, message, self.options, lambda: finding_chart(self._store, document)
        )
        outbox.record_result(self._store, message, result, now, lambda _: None)
        return message.id, result
