"""Request bodies taken in without trust: of a known kind, and bounded while they stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

from anyio import move_on_after
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gradledger_monitor.common.problems import Problem
from gradledger_monitor.ingest.admission import Reserve

JSON_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
DRAIN_SECONDS = 10.0
MOST_OTHER_BYTES = 2**16  # of a body that is no batch of records


class BodyLimit:
    """Refuses bodies that are large, or do not say how large they are, but where records go."""

    def __init__(self, app: ASGIApp, records: str) -> None:
        self._app = app
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None
        if scope["type"] == "http" and scope["path"] != self._records:
            problem = _too_much(Headers(scope=scope))
        if problem is None:
            return await self._app(scope, receive, send)
        await problem.response()(scope, receive, send)


def _too_much(headers: Headers) -> Problem | None:
    if "transfer-encoding" in headers:
        return Problem(411, "The body does not say how long it is: Content-Length.")
    if int(headers.get("content-length", 0)) > MOST_OTHER_BYTES:  # the server has checked it is one
        return _too_large(MOST_OTHER_BYTES)
    return None


def _too_large(limit: int) -> Problem:
    return Problem(413, f"The body is larger than {limit} bytes; send less at a time.")


def check_type(request: Request) -> None:
    """Refuse what does not say that it is JSON lines."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind not in JSON_LINES:
        raise Problem(
            415, f"The content type is {kind or 'not given'}; records are {JSON_LINES[0]}."
        )


def _anywhere(_: int) -> None:
    pass


async def read(request: Request, limit: int, take: Reserve = _anywhere) -> bytes:
    """The body as sent, at most ``limit`` bytes of it in memory, and no more than there is room."""
    stream = request.stream()
    body = bytearray()
    announced = int(request.headers.get("content-length", 0))
    try:
        # at once, or many that have begun would keep out each other
        take(min(announced, limit))
        async for chunk in stream:
            take(0 if announced else len(chunk))
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except Problem:
        body.clear()
        await _drain(stream)
        raise
    return bytes(body)


async def _drain(stream: AsyncIterator[bytes]) -> None:
    # A sender in the middle of a body sees a reset connection, not our answer, unless we read on.
    with move_on_after(DRAIN_SECONDS):
        async for _ in stream:
            pass
