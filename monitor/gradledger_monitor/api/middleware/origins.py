"""Protects users from pages of other sites in their browsers: DNS rebinding and forged requests.

``HostCheck`` refuses a page whose host name was pointed at this service (DNS rebinding).
``SameOriginCheck`` refuses a form of another site. Forms need no secret for that, because browsers
send the origin of a request (https://www.w3.org/TR/fetch-metadata/) and a page cannot change it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gradledger_monitor.api.app_state import state_of
from gradledger_monitor.api.problem_pages import respond
from gradledger_monitor.common.hosts import host_from_header, is_own_host
from gradledger_monitor.common.problems import Problem

STATIC = "/static/"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class HostCheck:
    """Refuses requests whose host name is not allowed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_public(scope) or _names_this_service(scope):
            return await self._app(scope, receive, send)
        problem = _host_problem(Headers(scope=scope).get("host", ""))
        await respond(scope, problem)(scope, receive, send)


def _is_public(scope: Scope) -> bool:
    """Whether anybody may read it: the page of a refusal needs its style sheet."""
    return bool(scope["path"].startswith(STATIC))


def _names_this_service(scope: Scope) -> bool:
    settings = state_of(scope).settings
    headers = Headers(scope=scope)
    name = host_from_header(headers.get("host", ""))
    if settings.requires_token and "authorization" in headers:
        # a page of another site has no token; HTTP/1.0 requires no Host
        return bool(name) or "host" not in headers
    return is_own_host(name, [*settings.allowed_hosts, settings.host])


def _host_problem(header: str) -> Problem:
    name = host_from_header(header)
    if not name:
        detail = f"Host {header!r} is not a host name with an optional port. "
        return Problem(421, f"{detail}GRADLEDGER_ALLOWED_HOSTS lists the allowed names.")
    return Problem(421, f"Host {name!r} is not allowed. Add it to GRADLEDGER_ALLOWED_HOSTS.")


def origin(scope: Scope) -> str:
    """Scheme, host and port under which the client reached this service.

    ``HostCheck`` has checked the form of the host, but the client chose it: display it to that
    client, and base no decision on it.
    """
    host = Headers(scope=scope).get("host")
    return f"{scope['scheme']}://{host}" if host else str(state_of(scope).settings.base_url)


class SameOriginCheck:
    """Refuses requests that may change something if a browser sends them from another site."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS or _is_same_origin(scope):
            return await self._app(scope, receive, send)
        problem = Problem(
            403, "A page of another site sent this request. Send it from a page of this service."
        )
        await respond(scope, problem)(scope, receive, send)


def _is_same_origin(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")  # from old browsers, and from all without a secure context
    return origin is None or urlsplit(origin).netloc == headers.get("host")
