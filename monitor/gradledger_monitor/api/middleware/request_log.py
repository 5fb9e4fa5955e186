"""Gives each request an id, which is in the response and in all its log lines, and times it."""

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
from gradledger_monitor.api.problem_handlers import internal_error, outage_of
from gradledger_monitor.api.problem_pages import respond
from gradledger_monitor.telemetry.logs import request_id

log = logging.getLogger(__name__)

HEADER = "X-Request-ID"
_VALID = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUIET = ("/healthz", "/readyz", "/metrics", "/static/")


class RequestLog:
    """Identifies, times and logs every request, and responds if the app failed to."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began = time.perf_counter()
        status = 0  # until the response starts
        id_ = _id(scope)
        request_id.set(id_)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = id_
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:  # in the middle of the body: no response is possible
            if not scope.get("state", {}).get(
                "connection_ended"
            ):  # otherwise it is already counted
                client = scope.get("client")
                state_of(scope).connection_log.count("aborted", client[0] if client else "")
        except Exception as error:
            outage = None if status else outage_of(scope, error)
            if not status:
                problem = outage or internal_error(id_)
                await respond(scope, problem)(scope, receive, send_with_id)
            if outage is None:
                raise  # uvicorn logs it, with the id
        finally:
            _record(scope, status, time.perf_counter() - began)


def _id(scope: Scope) -> str:
    of_client = Headers(scope=scope).get(HEADER, "")
    return of_client if _VALID.fullmatch(of_client) else uuid4().hex


def _record(scope: Scope, status: int, seconds: float) -> None:
    # by the pattern of the route: the number of paths is unlimited
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if route != "none" else "any"
    state_of(scope).metrics.requests.labels(method, route, str(status)).observe(seconds)
    level = logging.DEBUG if scope["path"].startswith(QUIET) else logging.INFO
    if log.isEnabledFor(level):
        log.log(level, "request", extra={"fields": _fields(scope, status, seconds)})


def _fields(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    authenticated = caller.get()
    client = scope.get("client")
    return {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(seconds * 1000, 1),
        "client": client[0] if client else None,
        "token": authenticated.token.id if authenticated else None,
    }
