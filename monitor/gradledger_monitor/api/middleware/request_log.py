"""Each request has an id, in the answer and in every line that is logged about it; and is timed."""

from __future__ import annotations

import logging
import re
import time
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradledger_monitor.api.app_state import state_of
from gradledger_monitor.api.middleware.credentials import caller
from gradledger_monitor.api.problem_handlers import failure
from gradledger_monitor.telemetry.logs import request_id

log = logging.getLogger(__name__)

HEADER = "X-Request-ID"
_SENSIBLE = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUIET = ("/healthz", "/readyz", "/metrics", "/static/")


class RequestLog:
    """Names, times and logs every request, and answers where nobody else could."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began = time.perf_counter()
        status = 0  # not answered yet
        name = _name(scope)
        request_id.set(name)

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except ClientDisconnect:  # in the middle of its body: there is nobody to answer
            if not scope.get("state", {}).get("connection_ended"):  # else it is counted already
                client = scope.get("client")
                state_of(scope).connection_log.count("aborted", client[0] if client else "")
        except Exception:
            if not status:
                await failure(name).response()(scope, receive, send_named)
            raise  # the server logs it, with the id
        finally:
            _account(scope, status, time.perf_counter() - began)


def _name(scope: Scope) -> str:
    given = Headers(scope=scope).get(HEADER, "")
    return given if _SENSIBLE.fullmatch(given) else uuid4().hex


def _account(scope: Scope, status: int, seconds: float) -> None:
    # by the route's pattern, for of addresses there is no end
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if route != "none" else "any"
    state_of(scope).metrics.requests.labels(method, route, str(status)).observe(seconds)
    level = logging.DEBUG if scope["path"].startswith(QUIET) else logging.INFO
    if log.isEnabledFor(level):
        log.log(level, "request", extra={"fields": _fields(scope, status, seconds)})


def _fields(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    who = caller.get()
    client = scope.get("client")
    return {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(seconds * 1000, 1),
        "client": client[0] if client else None,
        "token": who.token.id if who else None,
    }
