"""The demo's service: `gradledger serve` with its default database, in a separate process."""

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
    """The service did not start; its stderr has the reason."""


class Daemon:
    """A running service."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Any:
        """GET a path of its API as JSON, without any proxy."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request("GET", f"/api/v1{path}")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@contextmanager
def daemon() -> Iterator[Daemon]:
    """Run a service for a block. Its own session keeps Ctrl-C from reaching it."""
    serve = [sys.executable, "-m", "gradledger.cli", "serve", "--host", HOST, "--insecure"]
    command = [*serve, "--port", str(_port())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield Daemon(_address(process))
    finally:
        process.terminate()
        process.communicate()


def _port() -> int:
    """The default port, or a free one (0) if it is taken."""
    default = Settings().port
    try:
        with socket.create_server((HOST, default)):
            return default
    except OSError:
        return 0


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    for line in process.stdout:
        if line.startswith(ADDRESS):
            return line.removeprefix(ADDRESS).strip()
    raise DaemonFailed
