"""HTTP client of the service: posts a batch and classifies the response.

Only a response that is clearly from the service acknowledges records. Every other response, a slow
or endless one, and none at all lead to a retry.
"""

from __future__ import annotations

import gzip
import http.client
import json
import math
import socket
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from gradledger.delivery.proxies import Proxy, ProxyError, proxy_for
from gradledger.delivery.run_report import RunState

READ_TIMEOUT_SECONDS = 10.0  # between two bytes
RESPONSE_SECONDS = 30.0  # for the whole response, however slowly it arrives
MAX_RESPONSE_BYTES = 2**20
MAX_RETRY_AFTER_SECONDS = 600.0
GZIP_LEVEL = 1
FINDINGS_HEADER = "Gradledger-Findings"
NO_FINDINGS_ID = "nothing"
HINTS = {
    401: ": set GRADLEDGER_TOKEN to a valid token",
    403: ": GRADLEDGER_TOKEN needs the scope ingest",
    407: ": the proxy requires a user: http://user:password@host:port",
    421: ": add this host name to GRADLEDGER_ALLOWED_HOSTS of the service",
}

Outcome = Literal["accepted", "retry", "too_large"]


class UploadResult(NamedTuple):
    """The result of one post. ``problem`` is the reason of a retry or of the refused lines."""

    outcome: Outcome
    stored: int = 0  # lines that the service did not have before
    refused: int = 0  # lines that the service will never accept
    problem: str = ""
    retry_after: float = 0.0  # seconds, as the service requested
    findings_id: str | None = None  # identifies the current findings of the run, like an ETag
    findings: tuple[dict[str, Any], ...] = ()  # empty if the request had the current id
    run: RunState | None = None  # with the findings


class Client:
    """Keeps one connection to ``url`` open between batches. Raises ValueError for an invalid URL.

    ``proxy`` is the address of a proxy, ``off`` for none, or None for the environment's.
    """

    def __init__(self, url: str, token: str | None = None, proxy: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"the URL {url!r} of the service is invalid: use a URL such as http://host:4777"
            )
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") + "/api/v1/records"
        self._url, self._configured_proxy = url, proxy
        self._proxy: Proxy | None = None
        self._token = token
        self._connection: http.client.HTTPConnection | None = None
        self._findings_headers: dict[str, str] = {}
        self._started: float | None = None
        self._ended = False

    def post(self, lines: list[bytes], findings_id: str | None = None) -> UploadResult:
        """Send one batch. A failure gives a result with the outcome ``retry``, not an exception.

        ``findings_id`` requests the findings of the run if they differ from those with this id.
        """
        body = gzip.compress(b"".join(lines), GZIP_LEVEL)
        current_id = findings_id or NO_FINDINGS_ID
        self._findings_headers = {} if findings_id is None else {FINDINGS_HEADER: current_id}
        self._started = time.monotonic()
        try:
            return self._post_again_if_disconnected(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            return UploadResult("retry", problem=f"{reason}{self._proxy_note}")
        finally:
            self._started = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ------------------------------------------------------------------ for another thread

    def waiting(self) -> float:
        """For how many seconds the current request has been running."""
        started = self._started
        return 0.0 if started is None else time.monotonic() - started

    def cut_if_late(self) -> None:
        """Abort the current request if it has exceeded the time limit."""
        if self.waiting() > RESPONSE_SECONDS:
            self.cut()

    def end(self) -> None:
        """Abort the current request and prevent later ones."""
        self._ended = True
        self.cut()

    def cut(self) -> None:
        """Abort the current request: its thread gets a connection error."""
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            with suppress(OSError):
                # The plain socket's method: TLS would first wait for the peer's closing message.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    # ------------------------------------------------------------------ one request

    def _post_again_if_disconnected(self, body: bytes) -> UploadResult:
        """Retry once on a new connection: services close idle ones, which is not a failure."""
        if self._connection is not None:
            with suppress(ConnectionError, http.client.HTTPException):
                return self._request(body)
            self.close()
        return self._request(body)

    def _request(self, body: bytes) -> UploadResult:
        headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        headers |= self._findings_headers
        connection = self._connect()
        path = self._path
        if self._proxy is not None and not self._https:  # a request to a proxy has the full URL
            headers |= self._proxy.headers
            path = f"http://{urlsplit(self._url).netloc.rpartition('@')[2]}{path}"
        connection.request("POST", path, body=body, headers=headers)
        response = connection.getresponse()
        payload = response.read(MAX_RESPONSE_BYTES)
        if not response.isclosed():
            self.close()  # the rest of an oversized response is not read
        result = _classify(response.status, response.headers.get("Retry-After", ""), payload)
        return result._replace(problem=result.problem and result.problem + self._proxy_note)

    @property
    def _proxy_note(self) -> str:
        """The proxy, for a problem: it may be the cause."""
        return "" if self._proxy is None else f" (through the proxy {self._proxy})"

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._proxy = None
            self._proxy = proxy_for(self._url, self._configured_proxy)
            self._connection = self._new_connection(self._proxy)
        if self._connection.sock is None:
            self._connection.connect()
        if self._ended:  # checked after connecting, because `cut` missed this connection
            raise ConnectionAbortedError("the training process is ending")
        return self._connection

    def _new_connection(self, proxy: Proxy | None) -> http.client.HTTPConnection:
        """An unopened connection to the service, or to the proxy."""
        if proxy is None:
            return _connection(self._https, self._host, self._port)
        if not self._https:
            return _connection(proxy.https, proxy.host, proxy.port)
        if proxy.https:
            raise ProxyError("an https proxy cannot reach an https service: use an http proxy")
        connection = _connection(True, proxy.host, proxy.port or http.client.HTTP_PORT)
        port = self._port or http.client.HTTPS_PORT
        connection.set_tunnel(self._host, port, headers=proxy.headers)
        return connection


def _connection(https: bool, host: str, port: int | None) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
    return kind(host, port, timeout=READ_TIMEOUT_SECONDS)


def _classify(status: int, retry_after: str, body: bytes) -> UploadResult:
    if status in (200, 422):
        return _acknowledged(status, body)
    if status == 413:
        return UploadResult("too_large", problem="HTTP status 413")
    wait = retry_after_seconds(retry_after) if status in (429, 503) else None
    problem = f"HTTP status {status}{HINTS.get(status, '')}"
    return UploadResult("retry", problem=problem, retry_after=wait or 0.0)


def _acknowledged(status: int, body: bytes) -> UploadResult:
    document = _document(body)
    errors = document.get("errors", [])
    stored = document.get("stored")
    if not isinstance(stored, int) or not isinstance(errors, list):
        return UploadResult("retry", problem=f"HTTP status {status}, not from a gradledger service")
    if not errors:
        findings_id, findings = _findings_id(document), _findings(document)
        return UploadResult(
            "accepted", stored, findings_id=findings_id, findings=findings, run=_run(document)
        )
    first = errors[0] if isinstance(errors[0], dict) else {}
    refused = document.get("refused", len(errors))
    reason = f"{first.get('field')}: {first.get('reason')}"
    return UploadResult(
        "accepted", stored, refused if isinstance(refused, int) else len(errors), reason
    )


def _findings_id(document: dict[str, Any]) -> str | None:
    findings_id = document.get("findings_id")
    return findings_id if isinstance(findings_id, str) and findings_id.isalnum() else None


def _findings(document: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    findings = document.get("findings")
    if not isinstance(findings, list):
        return ()
    return tuple(finding for finding in findings if isinstance(finding, dict))


def _run(document: dict[str, Any]) -> RunState | None:
    """The state of the run; None from an older service."""
    run = document.get("run")
    if not isinstance(run, dict):
        return None
    try:
        return RunState(
            str(run["verdict"]),
            int(run["steps"]),
            int(run["revision"]),
            int(run["evaluated_revision"]),
            bool(run["ended"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def retry_after_seconds(header: str, limit: float = MAX_RETRY_AFTER_SECONDS) -> float | None:
    """The delay in a Retry-After header (seconds or an HTTP date), from 0 to ``limit``.

    None if the header is empty or invalid.
    """
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), limit)
