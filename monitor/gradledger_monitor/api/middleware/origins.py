"""Against pages of strangers in the browser of a user: who they ask for, and where they come from.

Neither needs a secret in a form. A page under a foreign name that points at our address fails the
first; a foreign page that posts to us fails the second, for browsers say where a request comes from
(https://www.w3.org/TR/fetch-metadata/) and no page can make them lie.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gradledger_monitor.api.app_state import state_of
from gradledger_monitor.common.hosts import host_from_header, is_own_host
from gradledger_monitor.common.problems import Problem

READING = ("GET", "HEAD", "OPTIONS")


class HostCheck:
    """Refuses requests that name a host that we are not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _asks_for_us(scope):
            return await self._app(scope, receive, send)
        await _host_problem(Headers(scope=scope).get("host", "")).response()(scope, receive, send)


def _asks_for_us(scope: Scope) -> bool:
    settings = state_of(scope).settings
    headers = Headers(scope=scope)
    name = host_from_header(headers.get("host", ""))
    if settings.requires_token and "authorization" in headers:
        # no page of a stranger has a token to show; HTTP/1.0 needs no Host
        return bool(name) or "host" not in headers
    return is_own_host(name, [*settings.allowed_hosts, settings.host])


def _host_problem(header: str) -> Problem:
    name = host_from_header(header)
    if not name:
        detail = f"Host {header!r} is not a host name with an optional port, such as those in "
        return Problem(421, f"{detail}GRADLEDGER_ALLOWED_HOSTS.")
    detail = f"Host {name!r} is not allowed. Add it: GRADLEDGER_ALLOWED_HOSTS={name}"
    return Problem(421, detail)


def origin(scope: Scope) -> str:
    """Scheme, host and port under which the client reached us.

    ``HostCheck`` has checked the form of the host; it is still the client's word, good for
    showing to that client and for no decision.
    """
    host = Headers(scope=scope).get("host")
    return f"{scope['scheme']}://{host}" if host else str(state_of(scope).settings.base_url)


class SameOriginCheck:
    """Refuses what changes anything, when a browser sends it from another site."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING or _comes_from_us(scope):
            return await self._app(scope, receive, send)
        problem = Problem(403, "A page of another site may not change anything here.")
        await problem.response()(scope, receive, send)


def _comes_from_us(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")  # what old browsers send, and all without a secure context
    return origin is None or urlsplit(origin).netloc == headers.get("host")
