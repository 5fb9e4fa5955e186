"""The page behind a link in a message: acknowledge or snooze one finding of one run.

The link authorizes these two actions without a login. Only a POST changes something, because mail
programs and chats open links for previews.
"""

from __future__ import annotations

import time
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from gradledger_monitor.alerts.links import LINK_PATH, InvalidLink, LinkTarget
from gradledger_monitor.alerts.snooze import SNOOZE_PERIODS, snooze_seconds
from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.forms import MAX_NAME, MAX_NOTE, Form, read_form
from gradledger_monitor.api.problem_pages import ALL_RUNS
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.model.findings import Acknowledgement, Finding
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.runs.queries import UnknownRun
from gradledger_web.rendering import render

router = APIRouter(prefix=LINK_PATH.rstrip("/"), include_in_schema=False)

NO_FINDING = "This finding no longer exists"
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


@router.get("/{link}")
def show(state: StateDep, link: str) -> HTMLResponse:
    """The finding as it is now, and the buttons."""
    return _page(state, link)


@router.post("/{link}")
async def acknowledge(request: Request, state: StateDep, link: str) -> HTMLResponse:
    """Acknowledge or snooze the finding."""
    form = await read_form(request)
    return await to_thread.run_sync(_acknowledge, state, link, form)


def _acknowledge(state: State, link: str, form: Form) -> HTMLResponse:
    try:
        target = state.alerts.links.verify(link)
        acknowledgement = _acknowledgement(form, time.time())
        acknowledgements.acknowledge(state.store, target.run, target.rule, acknowledgement)
    except InvalidLink as error:
        return _not_found(str(error))
    except (NoSuchFinding, UnknownRun):
        return _not_found(NO_FINDING)
    except ValueError as error:
        return _page(state, link, 422, str(error))
    return _page(state, link)


def _acknowledgement(form: Form, now: float) -> Acknowledgement:
    """The acknowledgement in a form. Raises ValueError if a field is missing."""
    by, note = form.get("by", "")[:MAX_NAME] or None, form.get("note", "")[:MAX_NOTE]
    if form.get("do") == "snooze":
        seconds = snooze_seconds(form.get("hours", ""))
        if seconds is None:
            raise ValueError("Select a period.")
        period = SNOOZE_PERIODS[form["hours"]]
        note = note or f"Snoozed for {period} with the link in a message"
        return Acknowledgement(note, by, now, now + seconds)
    if not note:
        raise ValueError("Enter a note: why this is acceptable, or who is working on it.")
    return Acknowledgement(note, by, now)


def _page(state: State, link: str, status: int = 200, error: str = "") -> HTMLResponse:
    try:
        run, finding = _finding(state, state.alerts.links.verify(link))
    except InvalidLink as invalid:
        return _not_found(str(invalid))
    except LookupError:
        return _not_found(NO_FINDING)
    context: dict[str, Any] = {"run": run, "finding": finding, "error": error}
    page = render("message_link.html", **context, snoozes=SNOOZE_PERIODS)
    return HTMLResponse(page, status, _HEADERS)


def _finding(state: State, target: LinkTarget) -> tuple[queries.RunRow, Finding]:
    run = queries.get_run(state.store, target.run)
    findings = queries.evaluation(state.store, target.run).findings
    finding = next((f for f in findings if f.rule == target.rule), None)
    if run is None or finding is None:
        raise LookupError
    return run, finding


def _not_found(reason: str) -> HTMLResponse:
    context = {"title": "Finding not found", "hint": f"{printable(reason)}."}
    page = render("problem.html", **context, links=[ALL_RUNS], logged_in=False)
    return HTMLResponse(page, 404, _HEADERS)
