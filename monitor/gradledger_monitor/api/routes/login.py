"""Browsers log in with a token once, and keep a session's cookie that no script can read.

The session is a row in the database. Logging out deletes it, so that a copy of the cookie is
worthless then.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import parse_qs

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.middleware import request_bodies
from gradledger_monitor.api.middleware.access import client_address
from gradledger_monitor.api.middleware.credentials import COOKIE, SESSION_SECONDS
from gradledger_monitor.common.problems import Problem
from gradledger_web.rendering import render

router = APIRouter(include_in_schema=False)

MOST_BYTES = 8_192
_HERE = re.compile(r"/(?![/\\])[^\\\x00-\x20]*")  # a path of ours, and no other site's
_HEADERS = {"Cache-Control": "no-store"}


def local(path: str) -> str:
    """The path to go on to, unless it leads elsewhere."""
    return path if _HERE.fullmatch(path) else "/"


def _page(status: int, after: str, wrong: str = "") -> HTMLResponse:
    return HTMLResponse(render("login.html", next_url=after, error=wrong), status, _HEADERS)


@router.get("/login")
def show_login(after: Annotated[str, Query(alias="next", max_length=4096)] = "/") -> HTMLResponse:
    """The form."""
    return _page(200, local(after))


@router.post("/login")
async def log_in(request: Request, state: StateDep) -> Response:
    """Exchange a token for a cookie."""
    said = parse_qs((await request_bodies.read(request, MOST_BYTES)).decode("utf-8", "replace"))
    after = local(said.get("next", ["/"])[0])
    secret = said.get("token", [""])[0].strip()
    token = await to_thread.run_sync(state.credentials.token_of_secret, secret)
    if token is None:
        return _refused(request, state, after)
    state.read_limiter.take(token.id)  # each login is a row
    await _end_session(request, state)
    answer = RedirectResponse(after, 303, _HEADERS)
    answer.set_cookie(
        COOKIE,
        await to_thread.run_sync(state.credentials.log_in, token),
        max_age=SESSION_SECONDS,
        secure=request.scope["scheme"] == "https",
        httponly=True,
        samesite="lax",
    )
    return answer


def _refused(request: Request, state: State, after: str) -> Response:
    try:
        state.failed_token_limiter.take(client_address(request))
    except Problem as problem:
        slow = _page(429, after, "Too many attempts. Try again in a moment.")
        slow.headers.update(problem.headers or {})
        return slow
    return _page(401, after, "This token is not known, or it was revoked.")


@router.post("/logout")
async def log_out(request: Request, state: StateDep) -> Response:
    """End the session on the server, and delete the browser's cookie."""
    await _end_session(request, state)
    answer = RedirectResponse("/login", 303, _HEADERS)
    answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
    return answer


async def _end_session(request: Request, state: State) -> None:
    cookie = request.cookies.get(COOKIE)
    if cookie:
        await to_thread.run_sync(state.credentials.log_out, cookie)
