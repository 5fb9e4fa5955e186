"""Forms of the settings page for alerts: create, test and remove channels and routes."""

from __future__ import annotations

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from gradledger_monitor.alerts.configuration import Route
from gradledger_monitor.alerts.roster import stored_routes
from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.forms import Form, read_form
from gradledger_monitor.api.pages.layout import redirect
from gradledger_monitor.api.pages.settings import show
from gradledger_monitor.api.routes import alerts
from gradledger_monitor.common.problems import Problem

router = APIRouter(include_in_schema=False)

SECTION = "/settings#alerts"


@router.post("/settings/channels")
async def create_channel(request: Request, state: StateDep) -> Response:
    """Create a channel. If a secret is generated for it, the response shows it once."""
    form = await read_form(request)
    config = {name: form[name] for name in ("kind", "url") if form.get(name)}
    name = form.get("name", "")
    try:
        response = await to_thread.run_sync(alerts.put_channel, state, name, dict(config))
    except Problem as problem:
        return await to_thread.run_sync(_show_problem, state, problem)
    secret = msgspec.json.decode(response.body).get("secret")
    if not secret:
        return redirect(SECTION)
    return await to_thread.run_sync(lambda: show(state, signing_secret=secret))


@router.post("/settings/channels/{name}")
async def change_channel(request: Request, state: StateDep, name: str) -> Response:
    """Test a channel, enable or disable it, or remove it."""
    action = (await read_form(request)).get("do")
    try:
        if action == "test":
            response = await alerts.test_channel(state, name)
            result = msgspec.json.decode(response.body)
            message = f"{name}: {result['outcome']}. {result['detail']}"
            return await to_thread.run_sync(lambda: show(state, message=message))
        if action == "remove":
            await to_thread.run_sync(alerts.delete_channel, state, name)
        else:
            switch = alerts.Switch(on=action == "on")
            await to_thread.run_sync(alerts.switch_channel, state, name, switch)
    except Problem as problem:
        return await to_thread.run_sync(_show_problem, state, problem)
    return redirect(SECTION)


@router.post("/settings/routes")
async def change_routes(request: Request, state: StateDep) -> Response:
    """Add a route, or remove one by its position."""
    form = await read_form(request)
    return await to_thread.run_sync(_change_routes, state, form)


def _change_routes(state: State, form: Form) -> Response:
    routes = stored_routes(state.store)
    try:
        if form.get("do", "").isdigit():
            removed = int(form["do"])
            routes = [route for position, route in enumerate(routes) if position != removed]
        else:
            routes.append(_route(form))
        alerts.put_routes(state, alerts.RouteList(routes=routes))
    except Problem as problem:
        return _show_problem(state, problem)
    except ValidationError as error:
        errors = "; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in error.errors())
        return show(state, error=errors)
    return redirect(SECTION)


def _route(form: Form) -> Route:
    patterns = {name: form.get(name, "").split() or ["*"] for name in ("rules", "projects", "runs")}
    target = {"channels": [form.get("channel", "")], "severity": form.get("severity", "warning")}
    return Route.model_validate({**target, **patterns})


def _show_problem(state: State, problem: Problem) -> Response:
    errors = problem.members.get("errors", [])
    reasons = [f"{error['field'].removeprefix('body.')}: {error['reason']}" for error in errors]
    return show(state, error="; ".join(reasons) or problem.detail)
