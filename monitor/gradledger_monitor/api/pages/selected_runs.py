"""Forms for the selected runs of the list, or for one run: tag, archive, write a note, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.forms import MAX_NOTE, read_lists
from gradledger_monitor.api.middleware.credentials import token_name
from gradledger_monitor.api.pages.layout import page, redirect
from gradledger_monitor.api.pages.run_list import PAGE
from gradledger_monitor.api.routes.runs import delete_and_log
from gradledger_monitor.common import clock
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import notes, queries, tags
from gradledger_monitor.store.runs.notes import Note
from gradledger_monitor.store.runs.queries import UnknownRun
from gradledger_web.formatting import segment

router = APIRouter(include_in_schema=False)

Fields = Mapping[str, Sequence[str]]


@router.post("/tags")
async def tag_runs(request: Request, store: StoreDep) -> RedirectResponse:
    """Add a tag to the runs, or archive them."""
    form = await read_lists(request)
    word = tags.ARCHIVED if "archive" in form.get("do", ()) else form.get("tag", [""])[0]
    await run_in_threadpool(_each, form, partial(_add_tag, store, word))
    return redirect(_list(request))


def _add_tag(store: Store, word: str, run: str) -> None:
    tags.add(store, run, word)


@router.post("/notes")
async def write_notes(request: Request, store: StoreDep) -> Response:
    """Show the form for a note; with a text, store it for all of the runs."""
    form = await read_lists(request)
    if "save" not in form:
        return await run_in_threadpool(_show, request, store, form, "note")
    text = form.get("note", [""])[0][:MAX_NOTE]
    note = Note(text, form.get("by", [""])[0] or token_name(), clock.now())
    await run_in_threadpool(_each, form, lambda run: notes.write(store, run, note))
    only = _ids(form)[0] if "of_run" in form and _ids(form) else None
    return redirect(f"/runs/{segment(only)}" if only else _list(request))


@router.post("/deletion")
async def delete_runs(request: Request, store: StoreDep) -> Response:
    """List what would be deleted; if that is confirmed, delete it."""
    form = await read_lists(request)
    if "confirmed" not in form:
        return await run_in_threadpool(_show, request, store, form, "delete")
    await run_in_threadpool(_each, form, partial(delete_and_log, store))
    return redirect(_list(request))


def _show(request: Request, store: Store, form: Fields, action: str) -> HTMLResponse:
    rows = [row for run in _ids(form) if (row := queries.get_run(store, run))]
    stored = notes.notes_of(store, [row.id for row in rows])
    texts = {stored[row.id].text if row.id in stored else "" for row in rows}
    context: dict[str, Any] = {
        "rows": rows,
        "action": action,
        "query": _query(request),
        "back": _list(request),
        "of_run": "of_run" in form,
        "note": texts.pop() if len(texts) == 1 else "",
        "replaced": len(stored) if texts else 0,
        "longest": MAX_NOTE,
    }
    return page("selected_runs.html", **context)


def _each(form: Fields, change: Callable[[str], None]) -> None:
    for run in _ids(form):
        with suppress(UnknownRun):  # it was deleted since the list was shown
            change(run)


def _ids(form: Fields) -> Sequence[str]:
    return form.get("run", [])[:PAGE]


def _list(request: Request) -> str:
    """The list of runs, with the filter that the form was sent from."""
    query = _query(request)
    return f"/?{query}" if query else "/"


def _query(request: Request) -> str:
    return str(request.scope["query_string"].decode("latin-1"))
