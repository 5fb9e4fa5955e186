"""Request bodies taken in without trust: bounded while they stream and while they inflate."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

from anyio import move_on_after
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gradledger_monitor.problems import Problem

JSON_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
DRAIN_SECONDS = 10.0
MOST_OTHER_BYTES = 2**16  # of a body that is no batch of records


class SmallBodies:
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
        return too_large(MOST_OTHER_BYTES)
    return None


def check_type(request: Request) -> None:
    """Refuse what does not say that it is JSON lines."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind not in JSON_LINES:
        raise Problem(
            415, f"The content type is {kind or 'not given'}; records are {JSON_LINES[0]}."
        )


async def read(request: Request, limit: int) -> bytes:
    """The body as sent, at most ``limit`` bytes of it in memory."""
    stream = request.stream()
    body = bytearray()
    async for chunk in stream:
        body += chunk
        if len(body) > limit:
            body.clear()
            await _drain(stream)
            raise too_large(limit)
    return bytes(body)


async def _drain(stream: AsyncIterator[bytes]) -> None:
    # A sender in the middle of a body sees a reset connection, not our answer, unless we read on.
    with move_on_after(DRAIN_SECONDS):
        async for _ in stream:
            pass


def too_large(limit: int) -> Problem:
    """The answer to a body above the limit."""
    return Problem(413, f"The body is larger than {limit} bytes; send less at a time.")


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as meant, by its Content-Encoding."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip"):
        detail = f"The content encoding {encoding!r} is not known; send gzip or none."
        raise Problem(415, detail, {"Accept-Encoding": "gzip"})
    try:
        return _gunzip(body, limit)
    except zlib.error as error:
        raise Problem(400, f"The body is not valid gzip: {error}.") from error


def _gunzip(body: bytes, limit: int) -> bytes:
    whole = bytearray()
    while body:  # a gzip body may be several members in a row
        member = zlib.decompressobj(wbits=31)
        whole += member.decompress(body, limit + 1 - len(whole))
        if len(whole) > limit:
            raise too_large(limit)
        if not member.eof:
            raise Problem(400, "The body is not valid gzip: it ends too early.")
        body = member.unused_data
    return bytes(whole)
