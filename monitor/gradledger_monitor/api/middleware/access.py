"""Who may do what: every request needs a scope unless it is listed here as public.

What is not known to be harmless needs ``read``, and what may change something needs ``admin``, so
that a route which nobody thought of here is closed.

Decisions are made on ``scope["path"]``, which routing uses too, and are confirmed on the route that
was matched. A URL rebuilt from headers (``request.url``) is never read: its path is what a client
writes into ``Host``.
"""

from __future__ import annotations

from urllib.parse import quote

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gradledger_monitor.alerts.links import LINK_PATH
from gradledger_monitor.api.app_state import State, state_of
from gradledger_monitor.api.middleware.credentials import COOKIE, Caller, caller
from gradledger_monitor.api.middleware.origins import READING
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.store.admin.tokens import Token

PUBLIC = ("/healthz", "/readyz", "/login", "/logout")
STATIC = "/static/"
RECORDS = "/api/v1/records"
MACHINES = ("/api/", "/metrics")  # who ask there cannot log in on a page

_DECIDED = "gradledger.required_scope"  # in the ASGI scope: what `Access` decided


def needed(method: str, path: str) -> str | None:
    """The scope that a request needs; None where anyone may."""
    if path in PUBLIC or path.startswith((STATIC, LINK_PATH)):
        return None
    if path == RECORDS:
        return "ingest"
    return "read" if method in READING else "admin"


class Access:
    """Lets through who may, at a bearable rate; refuses or sends to the login page all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                refusal = await _refusal(Request(scope))
            except Problem as problem:
                refusal = problem.response()
            if refusal is not None:
                return await refusal(scope, receive, send)
        await self._app(scope, receive, send)


async def _refusal(request: Request) -> Response | None:
    """The answer to who may not; None lets the request through."""
    scope = needed(request.method, request.scope["path"])
    request.scope[_DECIDED] = scope
    if scope is None:
        return None
    state = state_of(request.scope)
    if not state.settings.requires_token:
        _slow_down(state, scope, address(request))
        return None
    found = await _caller(request, state)
    if found is None:
        return _unknown(request, state)
    caller.set(found)
    _slow_down(state, scope, found.token.id)
    if not found.token.allows(scope):
        has = ", ".join(found.token.scopes)
        raise Problem(403, f"This needs the scope {scope}; the token has {has}.")
    return None


async def confirm_route(request: Request) -> None:
    """Refuse a request whose route needs another scope than its path did.

    Paths and patterns of routes agree today; a route added tomorrow may not begin like a public
    path by accident.
    """
    required = needed(request.method, request.scope["route"].path)
    if required != request.scope[_DECIDED]:
        raise Problem(403, f"This route needs the scope {required}, and its path another.")


def address(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else "unknown"


def _slow_down(state: State, scope: str, name: str) -> None:
    (state.batch_limiter if scope == "ingest" else state.read_limiter).take(name)


async def _caller(request: Request, state: State) -> Caller | None:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    cookie = request.cookies.get(COOKIE)
    token: Token | None = None
    if kind.lower() == "bearer":
        token = await to_thread.run_sync(state.credentials.of_secret, secret.strip())
        cookie = None
    elif cookie:
        token = await to_thread.run_sync(state.credentials.of_session, cookie)
    return Caller(token, cookie) if token else None


def _unknown(request: Request, state: State) -> Response:
    path: str = request.scope["path"]
    if request.method == "GET" and not path.startswith(MACHINES):
        query = request.scope["query_string"].decode("latin-1")
        back = quote(path) + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(back, safe='/')}", 303)
    if "authorization" in request.headers:
        state.failed_token_limiter.take(address(request))
    told = {"WWW-Authenticate": 'Bearer realm="gradledger"'}
    detail = "A token is needed: Authorization: Bearer ..., in the hooks GRADLEDGER_TOKEN."
    raise Problem(401, detail, told)
