"""The demo's daemon: `gradledger serve` on its default database, in a process of its own."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from gradledger_monitor.config.settings import Settings

HOST = "127.0.0.1"
ADDRESS = "gradledger listens on "


class DaemonFailed(Exception):
    """The daemon did not start; it has said why on stderr."""


class Daemon:
    """A daemon that listens."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Any:
        """The JSON at a path of its API, asked for directly whatever proxies there are."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request("GET", f"/api/v1{path}")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@contextmanager
def daemon() -> Iterator[Daemon]:
    """Start it, and end it with the block. Ctrl-C is for us, so it gets a session of its own."""
    serve = [sys.executable, "-m", "gradledger.cli", "serve", "--host", HOST, "--insecure"]
    command = [*serve, "--port", str(_port())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield Daemon(_address(process))
    finally:
        process.terminate()
        process.communicate()


def _port() -> int:
    """The usual port, or any free one when that is taken."""
    usual = Settings().port
    try:
        with socket.create_server((HOST, usual)):
            return usual
    except OSError:
        return 0


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    for line in process.stdout:
        if line.startswith(ADDRESS):
            return line.removeprefix(ADDRESS).strip()
    raise DaemonFailed
