"""Login of browsers: a token is exchanged for a session cookie that scripts cannot read.

The session is a row in the database. Logout deletes it, and copies of the cookie become invalid.
"""

from __future__ import annotations

import re
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.forms import read_form
from gradledger_monitor.api.middleware.access import client_address
from gradledger_monitor.api.middleware.credentials import COOKIE, SESSION_SECONDS
from gradledger_monitor.common.problems import Problem
from gradledger_web.rendering import render

router = APIRouter(include_in_schema=False)

_LOCAL_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20]*")  # not //host or /\host
_HEADERS = {"Cache-Control": "no-store"}


def local(path: str) -> str:
    """The path if it is on this site, otherwise the start page."""
    return path if _LOCAL_PATH.fullmatch(path) else "/"


def _page(status: int, after: str, error: str = "") -> HTMLResponse:
    return HTMLResponse(render("login.html", next_url=after, error=error), status, _HEADERS)


@router.get("/login")
def show_login(after: Annotated[str, Query(alias="next", max_length=4096)] = "/") -> HTMLResponse:
    """The login form."""
    return _page(200, local(after))


@router.post("/login")
async def log_in(request: Request, state: StateDep) -> Response:
    """Exchange a token for a session cookie."""
    form = await read_form(request)
    after, secret = local(form.get("next", "/")), form.get("token", "")
    token = await to_thread.run_sync(state.credentials.token_of_secret, secret)
    if token is None:
        return _refused(request, state, after)
    state.read_limiter.take(token.id)  # each login stores a row
    await _end_session(request, state)
    response = RedirectResponse(after, 303, _HEADERS)
    response.set_cookie(
        COOKIE,
        await to_thread.run_sync(state.credentials.log_in, token),
        max_age=SESSION_SECONDS,
        secure=request.scope["scheme"] == "https",
        httponly=True,
        samesite="lax",
    )
    return response


def _refused(request: Request, state: State, after: str) -> Response:
    try:
        state.failed_token_limiter.take(client_address(request))
    except Problem as problem:
        page = _page(429, after, "Too many attempts. Retry in a few seconds.")
        page.headers.update(problem.headers or {})
        return page
    return _page(401, after, "This token does not exist or was revoked.")


@router.post("/logout")
async def log_out(request: Request, state: StateDep) -> Response:
    """End the session on the server, and delete the cookie of the browser."""
    await _end_session(request, state)
    response = RedirectResponse("/login", 303, _HEADERS)
    response.delete_cookie(COOKIE, httponly=True, samesite="lax")
    return response


async def _end_session(request: Request, state: State) -> None:
    cookie = request.cookies.get(COOKIE)
    if cookie:
        await to_thread.run_sync(state.credentials.log_out, cookie)
