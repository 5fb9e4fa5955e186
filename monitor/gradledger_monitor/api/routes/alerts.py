"""Alerts over HTTP: what was sent, channels and routes, a test, another attempt."""

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
from gradledger_monitor.alerts.roster import Roster, save_channel, save_routes, stored_routes
from gradledger_monitor.api.app_state import JsonResponse, State, StateDep, StoreDep
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common import clock
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.store.alerts import channels, outbox
from gradledger_monitor.store.alerts.outbox import Alert

router = APIRouter(prefix="/api/v1/alerts", tags=["alerts"])

NEW_SECRET_BYTES = 32
ChannelName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
AlertId = Annotated[str, Path(max_length=40)]


class AlertList(BaseModel):
    """Messages, the newest first, each with every attempt to send it."""

    alerts: list[Alert]


class ChannelDocument(BaseModel):
    """A channel, without its secrets. Times are Unix seconds."""

    name: str
    kind: str
    target: str  # the address, without what in it may be secret
    secrets: int  # how many sign
    from_settings: bool  # read-only here: change it in the settings
    disabled: float | None
    why: str | None
    held_until: float | None  # the receiver asked to be left alone until then


class ChannelList(BaseModel):
    """All channels."""

    channels: list[ChannelDocument]


class MadeChannel(ChannelDocument):
    """A channel as it was made; ``secret`` was made for it, and is shown this once."""

    secret: str | None


class RouteList(BaseModel):
    """The routes that were made here; those of the settings come on top."""

    routes: list[Route]


class Switch(BaseModel):
    """Whether to send to a channel."""

    on: StrictBool


class Tried(BaseModel):
    """What became of one attempt."""

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
    """What was sent, is on its way, or was given up (``state=dead``), with every attempt."""
    return JsonResponse({"alerts": outbox.list_alerts(store, state, channel, limit, offset)})


@router.post("/{alert}/replay", response_model=AlertList, responses=problems(404, 409, 422))
def replay(state: StateDep, alert: AlertId) -> JsonResponse:
    """Send a message again, now, under the same id."""
    if not outbox.replay(state.store, alert, clock.now()):
        if not outbox.list_alerts(state.store, name=alert):
            raise Problem(404, f"There is no alert {alert!r}.")
        raise Problem(409, "It is being sent at this moment.")
    state.delivery_worker.wake()
    return JsonResponse({"alerts": outbox.list_alerts(state.store, name=alert)})


# ---------------------------------------------------------------- channels


@router.get("/channels", response_model=ChannelList)
def get_channels(state: StateDep) -> JsonResponse:
    """All channels, of the settings and made here, without their secrets."""
    roster = state.alerts.roster()
    return JsonResponse(
        {"channels": [shown_channel(roster, name) for name in sorted(roster.channels)]}
    )


@router.put("/channels/{name}", response_model=MadeChannel, responses=problems(409, 422))
def put_channel(
    state: StateDep,
    name: ChannelName,
    config: Annotated[
        dict[str, Any],
        Body(
            description="kind (webhook, apprise or alertmanager), url, and of webhooks secrets and "
            "bearer; without secrets, one is made and answered.",
            examples=[{"kind": "webhook", "url": "https://example.org/hook"}],
        ),
    ],
) -> JsonResponse:
    """Make a channel, or replace it."""
    _not_given(state, name)
    channel = _read(name, config)
    secret = None
    if isinstance(channel, Webhook) and not channel.secrets:
        secret = SECRET_PREFIX + base64.b64encode(os.urandom(NEW_SECRET_BYTES)).decode()
        channel = channel.model_copy(update={"secrets": [SecretStr(secret)]})
    save_channel(state.store, channel, clock.now())
    state.delivery_worker.wake()
    return JsonResponse({**shown_channel(state.alerts.roster(), name), "secret": secret})


@router.delete(
    "/channels/{name}",
    status_code=204,
    response_class=Response,
    responses=problems(404, 409, 422),
)
def delete_channel(state: StateDep, name: ChannelName) -> None:
    """Forget a channel; what waits for it is dead."""
    _not_given(state, name)
    if not channels.remove(state.store, name, clock.now()):
        raise _absent(name)


@router.put("/channels/{name}/switch", response_model=ChannelDocument, responses=problems(404, 422))
def switch_channel(state: StateDep, name: ChannelName, switch: Switch) -> JsonResponse:
    """Send to a channel again, or nothing more; a channel that answered 410 is off."""
    _existing(state, name)
    channels.switch(state.store, name, switch.on, clock.now())
    state.delivery_worker.wake()
    return JsonResponse(shown_channel(state.alerts.roster(), name))


@router.post("/channels/{name}/test", response_model=Tried, responses=problems(404, 422))
async def test_channel(state: StateDep, name: ChannelName) -> JsonResponse:
    """Send a test to a channel, once, and say what became of it."""
    await to_thread.run_sync(_existing, state, name)
    alert, outcome = await state.alerts.send_test(name, clock.now())
    told = {"outcome": outcome.outcome, "status": outcome.status, "detail": outcome.detail}
    return JsonResponse({"alert": alert, **told})


def _read(name: str, config: dict[str, Any]) -> AnyChannel:
    try:
        return parse_channel({**config, "name": name})
    except ValidationError as error:
        errors = [
            {"field": ".".join(["body", *map(str, one["loc"][1:])]), "reason": one["msg"]}
            for one in error.errors(include_input=False)
        ]
        detail = "The request has values that are not accepted."
        raise Problem(422, detail, errors=errors) from error


def shown_channel(roster: Roster, name: str) -> dict[str, Any]:
    """A channel as anybody may see it."""
    channel, how = roster.channels[name], roster.state(name)
    return {
        "name": name,
        "kind": channel.kind,
        "target": channel.model_dump(mode="json")["url"],
        "secrets": len(channel.secrets) if isinstance(channel, Webhook) else 0,
        "from_settings": name in roster.from_settings,
        "disabled": how.disabled,
        "why": how.why,
        "held_until": how.held_until,
    }


def _not_given(state: State, name: str) -> None:
    if any(channel.name == name for channel in state.settings.alert_channels):
        raise Problem(409, f"The channel {name!r} is in the settings, and is changed there.")


def _existing(state: State, name: str) -> None:
    if name not in state.alerts.roster().channels:
        raise _absent(name)


def _absent(name: str) -> Problem:
    return Problem(404, f"There is no channel {name!r}.")


# ---------------------------------------------------------------- routes


@router.get("/routes", response_model=RouteList)
def get_routes(store: StoreDep) -> JsonResponse:
    """The routes that were made here."""
    return JsonResponse({"routes": [route.model_dump() for route in stored_routes(store)]})


@router.put("/routes", response_model=RouteList, responses=problems(422))
def put_routes(state: StateDep, said: RouteList) -> JsonResponse:
    """Replace the routes that were made here."""
    known = state.alerts.roster().channels
    unknown = sorted({name for route in said.routes for name in route.channels} - set(known))
    if unknown:
        errors = [{"field": "body.routes", "reason": f"there is no channel {', '.join(unknown)}"}]
        raise Problem(422, "The request has values that are not accepted.", errors=errors)
    save_routes(state.store, said.routes, clock.now())
    state.delivery_worker.wake()
    return JsonResponse({"routes": [route.model_dump() for route in said.routes]})
