"""Alerts over HTTP: messages and their attempts, channels, routes, tests and replays."""

from __future__ import annotations

import base64
import os
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Body, Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, SecretStr, StrictBool, ValidationError

from gradledger_monitor.alerts.configuration import (
    SECRET_PREFIX,
    AnyChannel,
    Route,
    Webhook,
    parse_channel,
)
from gradledger_monitor.alerts.roster import (
    Roster,
    save_channel,
    save_routes,
    skipped_findings,
    stored_routes,
)
from gradledger_monitor.api.app_state import JsonResponse, State, StateDep, StoreDep
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common import clock
from gradledger_monitor.common.problems import Problem, invalid_values
from gradledger_monitor.store.alerts import channels, earlier_findings, outbox
from gradledger_monitor.store.alerts.outbox import Alert

router = APIRouter(prefix="/api/v1/alerts", tags=["alerts"])

NEW_SECRET_BYTES = 32
ChannelName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
AlertId = Annotated[str, Path(max_length=40)]


class AlertList(BaseModel):
    """Messages, the newest first, each with all attempts to send it."""

    alerts: list[Alert]


class ChannelDocument(BaseModel):
    """A channel, without its secrets. Times are Unix seconds."""

    name: str
    kind: str
    target: str  # the URL without secrets
    secrets: int  # number of secrets that sign messages
    from_settings: bool  # read-only here: change it in the settings
    disabled: float | None
    why: str | None
    held_until: float | None  # nothing is sent before: the receiver sent Retry-After
    skipped_findings: int  # open, of recent runs, from before the channel was added: not sent


class ChannelList(BaseModel):
    """All channels."""

    channels: list[ChannelDocument]


class CreatedChannel(ChannelDocument):
    """A new channel. ``secret`` was generated for it and is shown only once."""

    secret: str | None


class RouteList(BaseModel):
    """The routes that were created over HTTP. Those of the settings apply in addition."""

    routes: list[Route]


class Switch(BaseModel):
    """Whether a channel is enabled."""

    on: StrictBool


class SentFindings(BaseModel):
    """How many findings are sent, and how many runs have them: each run is one message."""

    findings: int
    runs: int


class TestResult(BaseModel):
    """The result of a test."""

    __test__ = False  # not a class of tests

    alert: str
    outcome: Literal["delivered", "failed", "gone"]
    status: int | None
    detail: str


# ---------------------------------------------------------------- messages


@router.get("", response_model=AlertList, responses=problems(422))
def get_alerts(
    store: StoreDep,
    state: Literal["waiting", "delivered", "dead"] | None = None,
    channel: Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> JsonResponse:
    """Messages that were sent, are waiting, or are no longer retried (``state=dead``)."""
    return JsonResponse({"alerts": outbox.list_alerts(store, state, channel, limit, offset)})


@router.post("/{alert}/replay", response_model=AlertList, responses=problems(404, 409, 422))
def replay(state: StateDep, alert: AlertId) -> JsonResponse:
    """Send a message again now, under the same id."""
    if not outbox.replay(state.store, alert, clock.now()):
        if not outbox.list_alerts(state.store, name=alert):
            raise Problem(404, f"There is no alert {alert!r}.")
        raise Problem(409, f"Alert {alert!r} is being sent now. Retry later.")
    state.delivery_worker.wake()
    return JsonResponse({"alerts": outbox.list_alerts(state.store, name=alert)})


# ---------------------------------------------------------------- channels


@router.get("/channels", response_model=ChannelList)
def get_channels(state: StateDep) -> JsonResponse:
    """All channels, from the settings and created over HTTP, without their secrets."""
    return JsonResponse({"channels": shown_channels(state)})


@router.put("/channels/{name}", response_model=CreatedChannel, responses=problems(409, 422))
def put_channel(
    state: StateDep,
    name: ChannelName,
    config: Annotated[
        dict[str, Any],
        Body(
            description="kind (webhook, apprise or alertmanager), url, and of webhooks secrets and "
            "bearer. Without secrets, one is generated and returned.",
            examples=[{"kind": "webhook", "url": "https://example.org/hook"}],
        ),
    ],
) -> JsonResponse:
    """Create or replace a channel. Findings that are open already are not sent to a new one."""
    _refuse_read_only(state, name)
    channel = _parse(name, config)
    secret = None
    if isinstance(channel, Webhook) and not channel.secrets:
        secret = SECRET_PREFIX + base64.b64encode(os.urandom(NEW_SECRET_BYTES)).decode()
        channel = channel.model_copy(update={"secrets": [SecretStr(secret)]})
    save_channel(state.store, channel, clock.now())
    state.delivery_worker.wake()
    return JsonResponse({**_shown_channel(state, name), "secret": secret})


@router.delete(
    "/channels/{name}",
    status_code=204,
    response_class=Response,
    responses=problems(404, 409, 422),
)
def delete_channel(state: StateDep, name: ChannelName) -> None:
    """Delete a channel. Its waiting messages become dead."""
    _refuse_read_only(state, name)
    if not channels.remove(state.store, name, clock.now()):
        raise _not_found(name)


@router.put("/channels/{name}/switch", response_model=ChannelDocument, responses=problems(404, 422))
def switch_channel(state: StateDep, name: ChannelName, switch: Switch) -> JsonResponse:
    """Enable or disable a channel. A 410 response of the receiver disables it, too."""
    _require_channel(state, name)
    channels.switch(state.store, name, switch.on, clock.now())
    state.delivery_worker.wake()
    return JsonResponse(_shown_channel(state, name))


@router.post(
    "/channels/{name}/open-findings",
    response_model=SentFindings,
    responses=problems(404, 409, 422),
)
def send_open_findings(state: StateDep, name: ChannelName) -> JsonResponse:
    """Send the open findings from before the channel was added, of runs of the last 24 hours."""
    _require_channel(state, name)
    now = clock.now()
    roster = state.alerts.roster()
    if name not in roster.enabled:
        raise Problem(409, f"Channel {name!r} is disabled. Enable it first.")
    findings = skipped_findings(state.store, roster, now).get(name, [])
    earlier_findings.unskip(state.store, name, now)
    state.delivery_worker.wake()
    runs = {finding.run for finding in findings}
    return JsonResponse({"findings": len(findings), "runs": len(runs)})


@router.post("/channels/{name}/test", response_model=TestResult, responses=problems(404, 422))
async def test_channel(state: StateDep, name: ChannelName) -> JsonResponse:
    """Send a test message to a channel once, and return the result."""
    await to_thread.run_sync(_require_channel, state, name)
    alert, result = await state.alerts.send_test(name, clock.now())
    return JsonResponse(
        {
            "alert": alert,
            "outcome": result.outcome,
            "status": result.status,
            "detail": result.detail,
        }
    )


def _parse(name: str, config: dict[str, Any]) -> AnyChannel:
    try:
        return parse_channel({**config, "name": name})
    except ValidationError as error:
        errors = [
            (".".join(["body", *map(str, invalid["loc"][1:])]), invalid["msg"])
            for invalid in error.errors(include_input=False)
        ]
        raise invalid_values(*errors) from error


def shown_channels(state: State) -> list[dict[str, Any]]:
    """All channels, without their secrets."""
    roster = state.alerts.roster()
    skipped = skipped_findings(state.store, roster, clock.now())
    return [_shown(roster, name, len(skipped.get(name, []))) for name in sorted(roster.channels)]


def _shown_channel(state: State, name: str) -> dict[str, Any]:
    return next(channel for channel in shown_channels(state) if channel["name"] == name)


def _shown(roster: Roster, name: str, skipped: int) -> dict[str, Any]:
    channel, state = roster.channels[name], roster.state(name)
    return {
        "name": name,
        "kind": channel.kind,
        "target": channel.model_dump(mode="json")["url"],
        "secrets": len(channel.secrets) if isinstance(channel, Webhook) else 0,
        "from_settings": name in roster.from_settings,
        "disabled": state.disabled,
        "why": state.why,
        "held_until": state.held_until,
        "skipped_findings": skipped,
    }


def _refuse_read_only(state: State, name: str) -> None:
    if any(channel.name == name for channel in state.settings.alert_channels):
        raise Problem(409, f"Channel {name!r} is defined in the settings. Change it there.")


def _require_channel(state: State, name: str) -> None:
    if name not in state.alerts.roster().channels:
        raise _not_found(name)


def _not_found(name: str) -> Problem:
    return Problem(404, f"There is no channel {name!r}.")


# ---------------------------------------------------------------- routes


@router.get("/routes", response_model=RouteList)
def get_routes(store: StoreDep) -> JsonResponse:
    """The routes that were created over HTTP."""
    return JsonResponse({"routes": [route.model_dump() for route in stored_routes(store)]})


@router.put("/routes", response_model=RouteList, responses=problems(422))
def put_routes(state: StateDep, body: RouteList) -> JsonResponse:
    """Replace the routes that were created over HTTP."""
    targets = {name for route in body.routes for name in route.channels}
    unknown = sorted(targets - set(state.alerts.roster().channels))
    if unknown:
        raise invalid_values(("body.routes", f"there is no channel {', '.join(unknown)}"))
    save_routes(state.store, body.routes, clock.now())
    state.delivery_worker.wake()
    return JsonResponse({"routes": [route.model_dump() for route in body.routes]})
