"""The page behind a link in a message: acknowledge or snooze one finding of one run.

Whoever has the link may do that and nothing else, without logging in. Only pressing a button does
anything: mail programs and chats open links to look at them.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from gradledger_monitor.alerts.links import LINK_PATH, InvalidLink, LinkTarget
from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.middleware import request_bodies
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.model.findings import Acknowledgement, Finding
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.runs.queries import UnknownRun
from gradledger_web.rendering import render

router = APIRouter(prefix=LINK_PATH.rstrip("/"), include_in_schema=False)

MOST_BYTES = 8_192
MOST_NOTE, MOST_NAME = 4_000, 256
SNOOZES = {"1": "1 hour", "8": "8 hours", "24": "1 day", "168": "1 week"}
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


@router.get("/{link}")
def show(state: StateDep, link: str) -> HTMLResponse:
    """The finding as it stands, and the buttons."""
    return _page(state, link)


@router.post("/{link}")
async def answer(request: Request, state: StateDep, link: str) -> HTMLResponse:
    """What somebody pressed."""
    body = (await request_bodies.read(request, MOST_BYTES)).decode("utf-8", "replace")
    said = {name: values[0].replace("\0", "").strip() for name, values in parse_qs(body).items()}
    return await to_thread.run_sync(_answer, state, link, said)


def _answer(state: State, link: str, said: dict[str, str]) -> HTMLResponse:
    try:
        about = state.alerts.links.verify(link)
        told = _told(said, time.time())
        acknowledgements.acknowledge(state.store, about.run, about.rule, told)
    except InvalidLink as error:
        return _failed(str(error), 404)
    except (NoSuchFinding, UnknownRun):
        return _failed("There is no such finding any more", 404)
    except ValueError as error:
        return _page(state, link, 422, str(error))
    return _page(state, link)


def _told(said: dict[str, str], now: float) -> Acknowledgement:
    """What was said, as it is kept. Raises ValueError where something is missing."""
    by, hours = said.get("by", "")[:MOST_NAME] or None, said.get("hours", "")
    note = said.get("note", "")[:MOST_NOTE]
    if said.get("do") == "snooze":
        if hours not in SNOOZES:
            raise ValueError("Say for how long.")
        note = note or f"Snoozed for {SNOOZES[hours]} with the link in a message"
        return Acknowledgement(note, by, now, now + float(hours) * 3_600)
    if not note:
        raise ValueError("Say why it is known, and all right.")
    return Acknowledgement(note, by, now)


def _page(state: State, link: str, status: int = 200, wrong: str = "") -> HTMLResponse:
    try:
        about = state.alerts.links.verify(link)
        run, finding = _standing(state, about)
    except InvalidLink as error:
        return _failed(str(error), 404)
    except LookupError:
        return _failed("There is no such finding any more", 404)
    context: dict[str, Any] = {"run": run, "finding": finding, "error": wrong, "snoozes": SNOOZES}
    return HTMLResponse(render("message_link.html", **context), status, _HEADERS)


def _standing(state: State, about: LinkTarget) -> tuple[queries.RunRow, Finding]:
    run = queries.get_run(state.store, about.run)
    found = queries.evaluation(state.store, about.run).findings
    finding = next((f for f in found if f.rule == about.rule), None)
    if run is None or finding is None:
        raise LookupError
    return run, finding


def _failed(why: str, status: int) -> HTMLResponse:
    context = {"title": "Nothing to answer", "hint": f"{printable(why)}."}
    page = render("not_found.html", **context, href="/", link_text="All runs", logged_in=False)
    return HTMLResponse(page, status, _HEADERS)
