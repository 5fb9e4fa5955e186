"""Request bodies: their content type is checked, and their size is limited while they stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

from anyio import move_on_after
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gradledger_monitor.api.problem_pages import respond
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.ingest.admission import Reserve

JSON_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
DRAIN_SECONDS = 10.0
MAX_OTHER_BYTES = 2**16  # of a body that is not a batch of records


class BodyLimit:
    """Refuses bodies that are large or of unknown length, except on the path of records."""

    def __init__(self, app: ASGIApp, records: str) -> None:
        self._app = app
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None
        if scope["type"] == "http" and scope["path"] != self._records:
            problem = _size_problem(Headers(scope=scope))
        if problem is None:
            return await self._app(scope, receive, send)
        await respond(scope, problem)(scope, receive, send)


def _size_problem(headers: Headers) -> Problem | None:
    if "transfer-encoding" in headers:
        return Problem(411, "The body has no Content-Length. Send it without Transfer-Encoding.")
    if int(headers.get("content-length", 0)) > MAX_OTHER_BYTES:  # the server checked its form
        if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            return Problem(413, f"The form is larger than {MAX_OTHER_BYTES:,} bytes. Shorten it.")
        return _too_large(MAX_OTHER_BYTES)
    return None


def _too_large(limit: int) -> Problem:
    return Problem(413, f"The body is larger than {limit:,} bytes. Send it in smaller parts.")


def check_type(request: Request) -> None:
    """Refuse a body whose content type is not JSON lines."""
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type not in JSON_LINES:
        raise Problem(415, f"Content-Type is {content_type!r}. Send {JSON_LINES[0]}.")


def _unlimited(_: int) -> None:
    pass


async def read(request: Request, limit: int, reserve: Reserve = _unlimited) -> bytes:
    """The body as sent. Raises a problem above ``limit`` bytes, or if ``reserve`` does."""
    stream = request.stream()
    body = bytearray()
    announced = int(request.headers.get("content-length", 0))
    try:
        # the whole length at once: many bodies that are received in part could block each other
        reserve(min(announced, limit))
        async for chunk in stream:
            reserve(0 if announced else len(chunk))
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except Problem:
        body.clear()
        await _drain(stream)
        raise
    return bytes(body)


async def _drain(stream: AsyncIterator[bytes]) -> None:
    # A client that is still sending would see a reset connection instead of the response.
    with move_on_after(DRAIN_SECONDS):
        async for _ in stream:
            pass
