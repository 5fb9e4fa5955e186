"""Common parts of pages: rendering with headers, the not-found page, redirects."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from gradledger_monitor.api.middleware.credentials import caller, logged_in, may_change
from gradledger_monitor.api.middleware.origins import origin
from gradledger_web.rendering import render

HEADERS = {"Cache-Control": "no-store"}
DEFAULT_URLS = ("http://127.0.0.1:4777", "http://localhost:4777")

RunId = Annotated[str, Path(min_length=1, max_length=128)]
RuleId = Annotated[str, Path(min_length=1, max_length=128)]


def page(template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """A page from its template."""
    user = {"logged_in": logged_in(), "may_change": may_change()}
    return HTMLResponse(render(template, **user, **context), status, HEADERS)


def run_command(request: Request) -> str:
    """What a person types to send a training to this service."""
    url = origin(request.scope)
    option = "" if url in DEFAULT_URLS else f"--url {url} "
    token = "GRADLEDGER_TOKEN=... " if caller.get() else ""
    return f"{token}gradledger run {option}-- python train.py"


def not_found(title: str, hint: str, href: str = "/", link_text: str = "All runs") -> HTMLResponse:
    """The not-found page, with a link to another page."""
    return page("problem.html", 404, title=title, hint=hint, links=[(href, link_text)])


def no_run(run: str) -> HTMLResponse:
    """The not-found page for a run."""
    return not_found("Run not found", f"There is no run with the id {run}.")


def redirect(path: str) -> RedirectResponse:
    """Redirect to a page after a form was saved."""
    return RedirectResponse(path, 303, HEADERS)
