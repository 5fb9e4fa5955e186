"""Against pages of strangers in the browser of a user: who they ask for, and where they come from.

Neither needs a secret in a form. A page under a foreign name that points at our address fails the
first; a foreign page that posts to us fails the second, for browsers say where a request comes from
(https://www.w3.org/TR/fetch-metadata/) and no page can make them lie.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gradledger_monitor.api.state import state_of
from gradledger_monitor.hosts import is_ours, name_in
from gradledger_monitor.problems import Problem

READING = ("GET", "HEAD", "OPTIONS")


class OnlyOurHosts:
    """Refuses requests that name a host that we are not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _asks_for_us(scope):
            return await self._app(scope, receive, send)
        name = name_in(Headers(scope=scope).get("host", ""))
        detail = f"This is not {name!r}; if it is, say so: GRADLEDGER_ALLOWED_HOSTS={name}"
        await Problem(421, detail).response()(scope, receive, send)


def _asks_for_us(scope: Scope) -> bool:
    settings = state_of(scope).settings
    headers = Headers(scope=scope)
    if settings.guarded and "authorization" in headers:
        return True  # no page of a stranger has a token to show
    allowed = [*settings.allowed_hosts, settings.host]
    return is_ours(name_in(headers.get("host", "")), allowed)


class OnlyOurPages:
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
