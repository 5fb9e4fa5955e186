"""Pages and JSON are compressed if the client accepts it."""

from __future__ import annotations

import gzip

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TYPES = ("text/html", "application/json", "application/problem+json")
LEAST_BYTES = 1_000  # shorter responses fit one packet
LEVEL = 5  # higher levels cost more time than they save in size


class Compression:
    """Compresses whole responses to GET, and leaves streams and files as they are.

    So are the answers to forms: they may show a secret beside text that the sender chose, and the
    length of a compressed response would leak it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            return await self._app(scope, receive, send)
        accepts = accepts_gzip(Headers(scope=scope))
        start: Message | None = None

        async def send_compressed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_text(message):
                start = message
                return
            if start is not None:
                held, start = start, None
                if message["type"] == "http.response.body":
                    message = _compressed(held, message, accepts)
                await send(held)
            await send(message)

        await self._app(scope, receive, send_compressed)


def accepts_gzip(headers: Headers) -> bool:
    """Whether a client accepts compressed responses."""
    return "gzip" in headers.get("accept-encoding", "")


def _is_text(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    content_type = headers.get("content-type", "").partition(";")[0]
    return content_type in TYPES and "content-encoding" not in headers


def _compressed(start: Message, message: Message, accepts: bool) -> Message:
    """The body of a response, and its headers in ``start``."""
    headers = MutableHeaders(scope=start)
    headers.add_vary_header("Accept-Encoding")
    body = message.get("body", b"")
    if not accepts or message.get("more_body") or len(body) < LEAST_BYTES:
        return message
    body = gzip.compress(body, LEVEL, mtime=0)
    headers["Content-Encoding"] = "gzip"
    headers["Content-Length"] = str(len(body))
    return {**message, "body": body}
