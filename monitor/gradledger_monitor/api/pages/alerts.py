"""The pages of alerts: channels, messages, silences and routes; and one message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse

from gradledger_monitor.alerts import markdown
from gradledger_monitor.alerts.roster import stored_routes
from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.pages.layout import not_found, page
from gradledger_monitor.api.routes.alerts import shown_channels
from gradledger_monitor.common import clock
from gradledger_monitor.model.findings import SEVERITIES
from gradledger_monitor.store.alerts import acknowledgements, outbox
from gradledger_monitor.store.alerts.outbox import DEAD, DELIVERED, WAITING, Alert

router = APIRouter(include_in_schema=False)

PAGE = 50  # messages
MOST_SILENCES = 100
STATES = {WAITING: "Waiting", DEAD: "Dead", DELIVERED: "Delivered"}

MessageId = Annotated[str, Path(max_length=40)]


@dataclass(frozen=True)
class MessageFilter:
    """Which messages are listed; empty values filter nothing."""

    state: str = ""
    channel: str = ""
    offset: int = 0

    def link(self, **changes: Any) -> str:
        """The URL of the page with some parameters replaced; by default, the newest messages."""
        changed = replace(self, **{"offset": 0, **changes})
        query = {name: value for name, value in vars(changed).items() if value}
        return f"/alerts{'?' if query else ''}{urlencode(query)}#messages"


@router.get("/alerts")
def show_alerts(
    state: StateDep,
    message_state: Annotated[str, Query(alias="state", max_length=16)] = "",
    channel: Annotated[str, Query(max_length=64)] = "",
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> HTMLResponse:
    """Channels, messages, silences and routes."""
    wanted_state = message_state if message_state in STATES else ""
    channel = channel.replace("\0", "").strip()
    return show(state, MessageFilter(wanted_state, channel, offset - offset % PAGE))


def show(
    state: State,
    wanted: MessageFilter | None = None,
    error: str = "",
    message: str = "",
    signing_secret: str = "",
) -> HTMLResponse:
    """The page, with the result of a form: an error, a message, or a new secret."""
    wanted, now = wanted or MessageFilter(), clock.now()
    numbers = outbox.counts(state.store)
    channels, stored = shown_channels(state), stored_routes(state.store)
    silences = acknowledgements.current(state.store, now)
    tally = {
        name: sum(n for (c, s), n in numbers.items() if s == name and wanted.channel in ("", c))
        for name in STATES
    }
    alerts = outbox.list_alerts(
        state.store, wanted.state or None, wanted.channel or None, PAGE, wanted.offset
    )
    return page(
        "alerts.html",
        422 if error else 200,
        error=error,
        message=message,
        signing_secret=signing_secret,
        channels=channels,
        numbers=numbers,
        failing=outbox.failing(state.store),
        known_channels=sorted({c["name"] for c in channels} | {name for name, _ in numbers}),
        states=STATES,
        tally={name: number for name, number in tally.items() if number or name == wanted.state},
        messages=[_listed(alert) for alert in alerts],
        total=tally[wanted.state] if wanted.state else sum(tally.values()),
        wanted=wanted,
        limit=PAGE,
        silences=silences[:MOST_SILENCES],
        silence_count=len(silences),
        routes=[route for route in state.alerts.roster().routes if route not in stored],
        own_routes=stored,
        severities=SEVERITIES,
        group_wait=state.settings.alert_group_wait,
        repeat_after=state.settings.alert_repeat_after,
        now=now,
    )


@router.get("/alerts/messages/{message}")
def show_message(state: StateDep, message: MessageId) -> HTMLResponse:
    """One message: its findings, and every attempt to send it."""
    for alert in outbox.list_alerts(state.store, name=message):
        return page(
            "alert.html",
            message=_listed(alert),
            attempts=alert.attempts,
            due=alert.due,
            states=STATES,
        )
    hint = f"There is no message {message}. Messages are deleted after some time."
    return not_found("Message not found", hint, "/alerts", "Alerts")


def _listed(alert: Alert) -> dict[str, Any]:
    """A message as pages list it."""
    data = alert.document["data"]
    return {
        "id": alert.id,
        "state": alert.state,
        "channel": alert.channel,
        "created": alert.created,
        "title": markdown.title(alert.document),
        "run": data["run"],
        "findings": data["findings"],
        "omitted": data["omitted"],
        "attempts": len(alert.attempts),
        "last": alert.attempts[-1] if alert.attempts else None,
    }
