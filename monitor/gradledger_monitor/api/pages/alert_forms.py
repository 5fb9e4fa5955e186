"""Forms of the alerts page: channels, routes, silences, and a message that is sent again."""

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
from gradledger_monitor.api.pages.alerts import MessageId, show
from gradledger_monitor.api.pages.layout import redirect
from gradledger_monitor.api.routes import alerts
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.runs.queries import UnknownRun
from gradledger_web.formatting import plural

router = APIRouter(include_in_schema=False)


@router.post("/alerts/channels")
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
        return redirect("/alerts")
    return await to_thread.run_sync(lambda: show(state, signing_secret=secret))


@router.post("/alerts/channels/{name}")
async def change_channel(request: Request, state: StateDep, name: str) -> Response:
    """Test a channel, send open findings to it, enable or disable it, or remove it."""
    action = (await read_form(request)).get("do")
    try:
        if action == "test":
            response = await alerts.test_channel(state, name)
            result = msgspec.json.decode(response.body)
            message = f"Test of {name}: {result['outcome']}. {result['detail']}"
            return await to_thread.run_sync(lambda: show(state, message=message))
        if action == "send-open":
            return await to_thread.run_sync(_send_open_findings, state, name)
        if action == "remove":
            await to_thread.run_sync(alerts.delete_channel, state, name)
        else:
            switch = alerts.Switch(on=action == "on")
            await to_thread.run_sync(alerts.switch_channel, state, name, switch)
    except Problem as problem:
        return await to_thread.run_sync(_show_problem, state, problem)
    return redirect("/alerts")


def _send_open_findings(state: State, name: str) -> Response:
    result = msgspec.json.decode(alerts.send_open_findings(state, name).body)
    number = f"{plural(result['findings'], 'finding')} of {plural(result['runs'], 'run')}"
    return show(state, message=f"Queued for {name}: {number}.")


@router.post("/alerts/routes")
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
    return redirect("/alerts#routes")


def _route(form: Form) -> Route:
    patterns = {name: form.get(name, "").split() or ["*"] for name in ("rules", "projects", "runs")}
    target = {"channels": [form.get("channel", "")], "severity": form.get("severity", "warning")}
    return Route.model_validate({**target, **patterns})


@router.post("/alerts/silences")
async def end_silence(request: Request, state: StateDep) -> Response:
    """Withdraw the acknowledgement or the snooze of a rule's findings in a run."""
    form = await read_form(request)
    return await to_thread.run_sync(_end_silence, state, form)


def _end_silence(state: State, form: Form) -> Response:
    try:
        run, rule = form.get("run", ""), form.get("rule", "")
        acknowledgements.remove_acknowledgement(state.store, run, rule)
    except (NoSuchFinding, UnknownRun) as error:
        return show(state, error=f"{error}. Somebody else may have ended it.")
    state.delivery_worker.wake()
    return redirect("/alerts#silences")


@router.post("/alerts/messages/{message}")
async def send_again(state: StateDep, message: MessageId) -> Response:
    """Send a message again, under the same id."""
    try:
        await to_thread.run_sync(alerts.replay, state, message)
    except Problem as problem:
        return await to_thread.run_sync(_show_problem, state, problem)
    return redirect(f"/alerts/messages/{message}")


def _show_problem(state: State, problem: Problem) -> Response:
    errors = problem.members.get("errors", [])
    reasons = [f"{error['field'].removeprefix('body.')}: {error['reason']}" for error in errors]
    return show(state, error="; ".join(reasons) or problem.detail)
