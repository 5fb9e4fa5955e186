"""What all pages have in common: how they are answered, what they say when there is nothing."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from gradledger_monitor.api.middleware import request_bodies
from gradledger_monitor.api.middleware.credentials import caller
from gradledger_web.rendering import render

HEADERS = {"Cache-Control": "no-store"}
MOST_BYTES = 16_384

RunId = Annotated[str, Path(min_length=1, max_length=128)]


def page(template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """A page from its template."""
    who = caller.get()
    known = {"logged_in": who is not None and who.is_browser, "may_change": may_change()}
    return HTMLResponse(render(template, **known, **context), status, HEADERS)


def may_change() -> bool:
    """Whether whoever asks may change anything."""
    who = caller.get()
    return who is None or who.token.allows("admin")


def absent(title: str, hint: str, href: str = "/", link_text: str = "All runs") -> HTMLResponse:
    """There is no such page, and where to go instead."""
    return page("not_found.html", 404, title=title, hint=hint, href=href, link_text=link_text)


def no_run(run: str) -> HTMLResponse:
    """There is no such run."""
    return absent("There is no such run", f"Nothing was ever reported under the id {run}.")


async def form(request: Request) -> dict[str, str]:
    """What a form says, field by field."""
    text = (await request_bodies.read(request, MOST_BYTES)).decode("utf-8", "replace")
    return {name: values[0].strip() for name, values in parse_qs(text).items()}


def after(where: str) -> RedirectResponse:
    """Where to go once a form has been taken in."""
    return RedirectResponse(where, 303, HEADERS)
