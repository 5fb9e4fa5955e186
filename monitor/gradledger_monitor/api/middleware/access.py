"""Authorization: every request needs a scope unless its path is listed here as public.

A request that only reads needs ``read``, a request that may change something needs ``admin``.
Therefore a new route is closed unless it is listed.

The scope follows from ``scope["path"]``, which also routes the request, and is confirmed on the
matched route. ``request.url`` is never read: Starlette builds it from headers, so a client can
choose its path with ``Host``.
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
from gradledger_monitor.api.middleware.origins import SAFE_METHODS, STATIC
from gradledger_monitor.api.problem_pages import respond
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.store.admin.tokens import Token

PUBLIC = ("/healthz", "/readyz", "/login", "/logout")
RECORDS = "/api/v1/records"
WITHOUT_LOGIN = ("/api/", "/metrics")  # clients of these cannot use the login page

_REQUIRED = "gradledger.required_scope"  # in the ASGI scope: what `Access` required


def required_scope(method: str, path: str) -> str | None:
    """The scope that a request needs; None if it needs none."""
    if path in PUBLIC or path.startswith((STATIC, LINK_PATH)):
        return None
    if path == RECORDS:
        return "ingest"
    return "read" if method in SAFE_METHODS else "admin"


class Access:
    """Passes on requests with the required scope, at a limited rate, and refuses all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                refusal = await _refusal(Request(scope))
            except Problem as problem:
                refusal = respond(scope, problem)
            if refusal is not None:
                return await refusal(scope, receive, send)
        await self._app(scope, receive, send)


async def _refusal(request: Request) -> Response | None:
    """The response to a request without the required scope; None passes the request on."""
    scope = required_scope(request.method, request.scope["path"])
    request.scope[_REQUIRED] = scope
    if scope is None:
        return None
    state = state_of(request.scope)
    if not state.settings.requires_token:
        _limit_rate(state, scope, client_address(request))
        return None
    identified = await _identify(request, state)
    if identified is None:
        return _unauthorized(request, state)
    caller.set(identified)
    _limit_rate(state, scope, identified.token.id)
    if not identified.token.allows(scope):
        has = ", ".join(identified.token.scopes)
        raise Problem(403, f"This request requires the scope {scope}. The token has {has}.")
    return None


async def confirm_route(request: Request) -> None:
    """Refuse a request if its route requires another scope than its path did.

    Paths and route patterns agree today. A route that is added later could begin like a public
    path by mistake.
    """
    of_route = required_scope(request.method, request.scope["route"].path)
    if of_route != request.scope[_REQUIRED]:
        of_path = request.scope[_REQUIRED]
        raise Problem(403, f"The route requires the scope {of_route}, but its path {of_path}.")


def client_address(request: Request) -> str:
    """The address that a request comes from."""
    return request.client.host if request.client else "unknown"


def _limit_rate(state: State, scope: str, name: str) -> None:
    (state.batch_limiter if scope == "ingest" else state.read_limiter).take(name)


async def _identify(request: Request, state: State) -> Caller | None:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    cookie = request.cookies.get(COOKIE)
    token: Token | None = None
    if scheme.lower() == "bearer":
        token = await to_thread.run_sync(state.credentials.token_of_secret, secret.strip())
        cookie = None
    elif cookie:
        token = await to_thread.run_sync(state.credentials.token_of_session, cookie)
    return Caller(token, cookie) if token else None


def _unauthorized(request: Request, state: State) -> Response:
    path: str = request.scope["path"]
    if request.method == "GET" and not path.startswith(WITHOUT_LOGIN):
        query = request.scope["query_string"].decode("latin-1")
        target = quote(path) + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(target, safe='/')}", 303)
    if "authorization" in request.headers:
        state.failed_token_limiter.take(client_address(request))
    headers = {"WWW-Authenticate": 'Bearer realm="gradledger"'}
    detail = "A token is required to read or send data. "
    detail += "Send Authorization: Bearer TOKEN; in a training process, set GRADLEDGER_TOKEN."
    raise Problem(401, detail, headers)
