"""The parts of alerts put together, for the service and for the command line."""

from __future__ import annotations

from functools import cached_property

from gradledger_monitor.alerts import documents
from gradledger_monitor.alerts.addresses import reach
from gradledger_monitor.alerts.delivering import Deliverer, Hear, Means, picture, send
from gradledger_monitor.alerts.links import Links
from gradledger_monitor.alerts.outcomes import Outcome
from gradledger_monitor.alerts.speaking import Voice
from gradledger_monitor.settings import Settings
from gradledger_monitor.store import channels, outbox
from gradledger_monitor.store.channels import Roster
from gradledger_monitor.store.database import Store

LINK_KEY = "alert links"


class Alerts:
    """What the settings and the database say of alerts."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings, self._store = settings, store
        self.means = Means(
            reach=reach(settings.alert_networks),
            timeout=settings.alert_timeout,
            repeat_after=settings.alert_repeat_after,
            delays=settings.alert_retries,
            keep_seconds=settings.alert_keep_days * 86_400,
        )

    def roster(self) -> Roster:
        """All channels and routes, as they are now."""
        given = self._settings.alert_channels
        return channels.roster(self._store, given, self._settings.alert_routes)

    @cached_property
    def links(self) -> Links:
        """Needs the database as this version knows it."""
        settings = self._settings
        key = channels.key(self._store, LINK_KEY)
        return Links(settings.base, key, settings.alert_link_days)

    def deliverer(self, hear: Hear) -> Deliverer:
        """What plans and sends, once it is started."""
        return Deliverer(self._store, self._voice, self.means, hear)

    def _voice(self) -> Voice:
        settings = self._settings
        return Voice(settings.base, self.links, settings.alert_timing, self.roster)

    async def try_out(self, channel: str, now: float) -> tuple[str, Outcome]:
        """Send a test to a channel here and now: its id, and what became of it. Raises KeyError."""
        target = self.roster().channels[channel]
        document = documents.test(self._settings.base, now)
        one = outbox.put_claimed(self._store, channel, document, now)
        outcome = await send(target, one, self.means, lambda: picture(self._store, document))
        outbox.finish(self._store, one, outcome, now, lambda _: None)
        return one.id, outcome
