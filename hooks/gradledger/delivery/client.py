"""One HTTP conversation with the service: post a batch, say what became of it."""

from __future__ import annotations

import gzip
import http.client
import json
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 10.0
GZIP_LEVEL = 1

Fate = Literal["accepted", "retry", "too_large"]


@dataclass(frozen=True)
class Answer:
    """``refused`` lines will never be accepted; ``problem`` says why, or why to retry."""

    fate: Fate
    refused: int = 0
    problem: str = ""


class Client:
    """Keeps one connection to ``url`` open between batches."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"GRADLEDGER_URL must be like http://host:4777, not {url!r}")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") + "/api/v1/records"
        self._token = token
        self._connection: http.client.HTTPConnection | None = None

    def post(self, lines: list[bytes]) -> Answer:
        """Send one batch. A dead or failing service is an answer, not an exception."""
        try:
            return self._exchange(gzip.compress(b"".join(lines), GZIP_LEVEL))
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Answer("retry", problem=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, body: bytes) -> Answer:
        headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connect()
        connection.request("POST", self._path, body=body, headers=headers)
        response = connection.getresponse()
        return _judge(response.status, response.read(1 << 20))

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=TIMEOUT_SECONDS)
        return self._connection


def _judge(status: int, body: bytes) -> Answer:
    if status == 200:
        return Answer("accepted")
    if status == 413:
        return Answer("too_large", problem="413")
    if status == 422:
        errors = _errors(body)
        first = errors[0] if errors else {}
        return Answer("accepted", len(errors), f"{first.get('field')}: {first.get('reason')}")
    return Answer("retry", problem=f"HTTP status {status}")


def _errors(body: bytes) -> list[dict[str, object]]:
    try:
        errors = json.loads(body).get("errors", [])
    except (ValueError, AttributeError):
        return []
    return [e for e in errors if isinstance(e, dict)] if isinstance(errors, list) else []
