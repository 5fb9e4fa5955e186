"""One HTTP conversation with the service: post a batch, say what became of it.

Only an answer that is unmistakably the service's acknowledges anything. Whatever else comes back,
slowly, endlessly or never, is a reason to try again later.
"""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from gradledger.delivery.proxies import Proxy, ProxyError, proxy_for

SILENCE_SECONDS = 10.0  # between two bytes
ANSWER_SECONDS = 30.0  # for the whole answer, however it trickles
MOST_ANSWER_BYTES = 2**20
LONGEST_WAIT_SECONDS = 600.0  # that a service may ask for
GZIP_LEVEL = 1
ASKS = "Gradledger-Findings"
WAYS_OUT = {
    401: ": it wants a valid token: GRADLEDGER_TOKEN",
    403: ": GRADLEDGER_TOKEN must have the scope ingest",
    407: ": the proxy wants a user: http://user:password@host:port",
    421: ": it does not go by that name: GRADLEDGER_ALLOWED_HOSTS, there",
}

Fate = Literal["accepted", "retry", "too_large"]


class Answer(NamedTuple):
    """``refused`` lines will never be accepted; ``problem`` says why, or why to retry."""

    fate: Fate
    stored: int = 0  # lines that the service did not have before
    refused: int = 0
    problem: str = ""
    wait: float = 0.0  # seconds for which the service asked to be left alone
    known: str | None = None  # a name for the findings of the run, as they are now
    findings: tuple[dict[str, Any], ...] = ()  # where they were not known under that name


class Client:
    """Keeps one connection to ``url`` open between batches. Raises ValueError for a bad URL.

    ``proxy`` is the address of one, ``off`` for none, or None for what the environment says.
    """

    def __init__(self, url: str, token: str | None = None, proxy: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"GRADLEDGER_URL must be like http://host:4777, not {url!r}")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") + "/api/v1/records"
        self._url, self._chosen_proxy = url, proxy
        self._proxy: Proxy | None = None
        self._token = token
        self._connection: http.client.HTTPConnection | None = None
        self._asks: dict[str, str] = {}
        self._began: float | None = None
        self._ended = False

    def post(self, lines: list[bytes], known: str | None = None) -> Answer:
        """Send one batch. A dead or failing service is an answer, not an exception.

        ``known`` asks for what was found in the run, unless it is what has that name.
        """
        body = gzip.compress(b"".join(lines), GZIP_LEVEL)
        self._asks = {} if known is None else {ASKS: known or "nothing"}
        self._began = time.monotonic()
        try:
            return self._patiently(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Answer("retry", problem=f"{type(error).__name__}: {error}{self._way}")
        finally:
            self._began = None

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ------------------------------------------------------------------ for another thread

    def waiting(self) -> float:
        """For how many seconds an exchange has been going on."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def cut_if_late(self) -> None:
        """End an exchange that takes longer than any honest one."""
        if self.waiting() > ANSWER_SECONDS:
            self.cut()

    def end(self) -> None:
        """End the exchange that is going on, and let no other begin."""
        self._ended = True
        self.cut()

    def cut(self) -> None:
        """End the exchange that is going on: its thread sees a closed connection."""
        connection = self._connection
        found = None if connection is None else connection.sock
        if found is not None:
            with suppress(OSError):
                # of the plain socket: TLS would first say goodbye to a peer that does not listen
                socket.socket.shutdown(found, socket.SHUT_RDWR)

    # ------------------------------------------------------------------ one exchange

    def _patiently(self, body: bytes) -> Answer:
        """A service closes a connection that was idle: that is no failure of its own."""
        if self._connection is not None:
            with suppress(ConnectionError, http.client.HTTPException):
                return self._exchange(body)
            self.close()
        return self._exchange(body)

    def _exchange(self, body: bytes) -> Answer:
        headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        headers |= self._asks
        connection = self._connect()
        path = self._path
        if self._proxy is not None and not self._https:  # a proxy is asked for the whole address
            headers |= self._proxy.headers
            path = f"http://{urlsplit(self._url).netloc.rpartition('@')[2]}{path}"
        connection.request("POST", path, body=body, headers=headers)
        response = connection.getresponse()
        told = response.read(MOST_ANSWER_BYTES)
        if not response.isclosed():
            self.close()  # there is more to come, and nobody wants it
        answer = _judge(response.status, response.headers.get("Retry-After", ""), told)
        return answer._replace(problem=answer.problem and answer.problem + self._way)

    @property
    def _way(self) -> str:
        """What to add to a problem: where there is a proxy, it may be the proxy's."""
        return "" if self._proxy is None else f" (through the proxy {self._proxy})"

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._proxy = None
            self._proxy = proxy_for(self._url, self._chosen_proxy)
            self._connection = self._through(self._proxy)
        if self._connection.sock is None:
            self._connection.connect()
        if self._ended:  # looked at now: a connection made later than that was not cut
            raise ConnectionAbortedError("the training has ended")
        return self._connection

    def _through(self, proxy: Proxy | None) -> http.client.HTTPConnection:
        """A connection that is not yet made: to the service, or to the proxy before it."""
        if proxy is None:
            return _connection(self._https, self._host, self._port)
        if not self._https:
            return _connection(proxy.https, proxy.host, proxy.port)
        if proxy.https:
            raise ProxyError("a proxy that is itself reached over https leads to no https service")
        connection = _connection(True, proxy.host, proxy.port or http.client.HTTP_PORT)
        port = self._port or http.client.HTTPS_PORT
        connection.set_tunnel(self._host, port, headers=proxy.headers)
        return connection


def _connection(https: bool, host: str, port: int | None) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
    return kind(host, port, timeout=SILENCE_SECONDS)


def _judge(status: int, retry_after: str, body: bytes) -> Answer:
    if status in (200, 422):
        return _acknowledged(status, body)
    if status == 413:
        return Answer("too_large", problem="HTTP status 413")
    wait = _seconds(retry_after) if status in (429, 503) else 0.0
    return Answer("retry", problem=f"HTTP status {status}{WAYS_OUT.get(status, '')}", wait=wait)


def _acknowledged(status: int, body: bytes) -> Answer:
    document = _document(body)
    errors = document.get("errors", [])
    stored = document.get("stored")
    if not isinstance(stored, int) or not isinstance(errors, list):
        return Answer("retry", problem=f"HTTP status {status}, and not from a gradledger service")
    if not errors:
        return Answer(
            "accepted", stored, known=_text(document, "findings_id"), findings=_found(document)
        )
    first = errors[0] if isinstance(errors[0], dict) else {}
    refused = document.get("refused", len(errors))
    reason = f"{first.get('field')}: {first.get('reason')}"
    return Answer("accepted", stored, refused if isinstance(refused, int) else len(errors), reason)


def _text(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) and value.isalnum() else None


def _found(document: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    findings = document.get("findings")
    if not isinstance(findings, list):
        return ()
    return tuple(one for one in findings if isinstance(one, dict))


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _seconds(retry_after: str) -> float:
    """What a Retry-After header asks for: a number of seconds, or a date."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT_SECONDS) if seconds == seconds else 0.0
