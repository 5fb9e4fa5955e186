"""A receiver of alerts: a separate process, which can misbehave, be killed and restart.

It verifies signatures with the package that receivers use. Before it responds, it appends each
request to a file. A behaviour is a list of responses: each request takes the next, and the last
one repeats. A response has ``status``, ``headers``, ``hang`` (never responds) or ``close`` (closes
the connection).
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

from helpers.forkserver import Python

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD_SECRET = "whsec_" + "C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
_behaviours = itertools.count(1)  # in the process of the test
FINE: list[dict[str, Any]] = [{"status": 204}]


@dataclass
class Receiver:
    """A running receiver."""

    folder: Path
    secret: str = SECRET
    port: int = 0
    process: Python | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.folder / "received.jsonl"
        self.log.touch()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/hook"

    def start(self) -> None:
        """Start it, on the port that it had before."""
        command = ["-m", "helpers.receiver", self.folder, self.port, self.secret]
        tests = Path(__file__).parent.parent
        self.process = Python(command, cwd=tests, server="service", merged=True)
        self.port = int(self.process.stdout.readline())

    def vanish(self) -> None:
        """End it, as a machine that loses its power."""
        if self.process is not None:
            self.process.end_session()

    def behave(self, *answers: dict[str, Any]) -> None:
        """How it answers from now on."""
        (self.folder / "behaviour.json").write_text(json.dumps([next(_behaviours), *answers]))

    def got(self) -> list[dict[str, Any]]:
        """All that came, in order of arrival."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines]

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts without tests, each id once, as first received."""
        bodies = {one["id"]: one["body"] for one in reversed(self.got())}
        first = reversed(bodies.values())
        return [body for body in first if body["type"] == "gradledger.alert"]

    def channel(self, name: str = "hook", **more: Any) -> dict[str, Any]:
        """The configuration of a channel to this receiver."""
        return {"kind": "webhook", "name": name, "url": self.url, "secrets": [self.secret], **more}


@contextmanager
def receiving(folder: Path, **options: Any) -> Iterator[Receiver]:
    """A receiver for the duration of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    receiver = Receiver(folder, **options)
    receiver.behave(*FINE)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.vanish()


# ---------------------------------------------------------------------- in its own process


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    secret: str
    lock = threading.Lock()
    plan = (0, 0)  # the number of the behaviour, and how many responses it has given

    def do_POST(self) -> None:
        """Write down, then behave."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with self.lock:
            self._note(body)
            answer = self._next()
        if answer.get("hang"):
            threading.Event().wait()
        if answer.get("close"):
            self.close_connection = True
            return
        self.send_response(answer["status"])
        for name, value in answer.get("headers", {}).items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST

    def _note(self, body: bytes) -> None:
        request = {
            "path": self.path,
            "method": self.command,
            "id": self.headers.get("webhook-id"),
            "bearer": self.headers.get("authorization"),
            "verified": self._verified(body),
            "size": len(body),
            "body": json.loads(body or b"null"),
        }
        with (self.folder / "received.jsonl").open("a") as log:
            log.write(json.dumps(request) + "\n")

    def _verified(self, body: bytes) -> bool:
        try:
            Webhook(self.secret).verify(body, dict(self.headers), json_parse=False)
        except WebhookVerificationError:
            return False
        return True

    def _next(self) -> dict[str, Any]:
        behaviour, *answers = json.loads((self.folder / "behaviour.json").read_text())
        count = _Handler.plan[1] if _Handler.plan[0] == behaviour else 0
        _Handler.plan = (behaviour, count + 1)
        answer: dict[str, Any] = answers[min(count, len(answers) - 1)]
        return answer

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def _main(folder: str, port: str, secret: str) -> None:
    _Handler.folder, _Handler.secret = Path(folder), secret
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _main(*sys.argv[1:])
