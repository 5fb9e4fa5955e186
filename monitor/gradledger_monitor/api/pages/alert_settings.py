"""The forms of the settings page for alerts: channels are made, tried and removed, routes laid."""

from __future__ import annotations

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from gradledger_monitor.alerts.configuration import Route
from gradledger_monitor.alerts.roster import stored_routes
from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.pages.layout import after, form
from gradledger_monitor.api.pages.settings import show
from gradledger_monitor.api.routes import alerts
from gradledger_monitor.common.problems import Problem

router = APIRouter(include_in_schema=False)

HERE = "/settings#alerts"


@router.post("/settings/channels")
async def make_channel(request: Request, state: StateDep) -> Response:
    """Make a channel; a secret made for it is on the page that answers, and nowhere else."""
    said = await form(request)
    config = {name: said[name] for name in ("kind", "url") if said.get(name)}
    try:
        answer = await to_thread.run_sync(
            alerts.put_channel, state, said.get("name", ""), dict(config)
        )
    except Problem as problem:
        return await to_thread.run_sync(_wrong, state, problem)
    secret = msgspec.json.decode(answer.body).get("secret")
    return (
        await to_thread.run_sync(lambda: show(state, signing_secret=secret))
        if secret
        else after(HERE)
    )


@router.post("/settings/channels/{name}")
async def change_channel(request: Request, state: StateDep, name: str) -> Response:
    """Try a channel, switch it on or off, or remove it."""
    do = (await form(request)).get("do")
    try:
        if do == "test":
            answer = await alerts.test_channel(state, name)
            tried = msgspec.json.decode(answer.body)
            message = f"{name}: {tried['outcome']}. {tried['detail']}"
            return await to_thread.run_sync(lambda: show(state, message=message))
        if do == "remove":
            await to_thread.run_sync(alerts.delete_channel, state, name)
        else:
            switch = alerts.Switch(on=do == "on")
            await to_thread.run_sync(alerts.switch_channel, state, name, switch)
    except Problem as problem:
        return await to_thread.run_sync(_wrong, state, problem)
    return after(HERE)


@router.post("/settings/routes")
async def change_routes(request: Request, state: StateDep) -> Response:
    """Lay a route, or remove one by its place."""
    said = await form(request)
    return await to_thread.run_sync(_change_routes, state, said)


def _change_routes(state: State, said: dict[str, str]) -> Response:
    routes = stored_routes(state.store)
    try:
        if said.get("do", "").isdigit():
            routes = [route for at, route in enumerate(routes) if at != int(said["do"])]
        else:
            routes.append(_route(said))
        alerts.put_routes(state, alerts.RouteList(routes=routes))
    except Problem as problem:
        return _wrong(state, problem)
    except ValidationError as error:
        reason = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
        return show(state, error=reason)
    return after(HERE)


def _route(said: dict[str, str]) -> Route:
    patterns = {name: said.get(name, "").split() or ["*"] for name in ("rules", "projects", "runs")}
    told = {"channels": [said.get("channel", "")], "severity": said.get("severity", "warning")}
    return Route.model_validate({**told, **patterns})


def _wrong(state: State, problem: Problem) -> Response:
    errors = problem.members.get("errors", [])
    reasons = [f"{error['field'].removeprefix('body.')}: {error['reason']}" for error in errors]
    return show(state, error="; ".join(reasons) or problem.detail)
