"""What is at the URL of the hooks: a service, nothing, or a server that never answers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from helpers.ports import reserved_port

START_SECONDS = 60.0


class Surroundings(NamedTuple):
    """URLs by name; ``service`` exists only if the monitor is installed."""

    urls: dict[str, str]

    def url(self, name: str) -> str:
        """The URL of this kind; without a service, a URL at which nothing listens."""
        return self.urls.get(name, self.urls["dead"])


@contextmanager
def surroundings(folder: Path) -> Iterator[Surroundings]:
    """All kinds, for a block; the service stores in ``folder``."""
    with _silent() as silent, reserved_port() as dead:
        urls = {
            "silent": silent,
            "dead": f"http://127.0.0.1:{dead}",
            "unresolved": "http://gradledger.invalid:4777",
        }
        if importlib.util.find_spec("gradledger_monitor") is None:
            yield Surroundings(urls)
            return
        with _service(folder) as service:
            yield Surroundings({"service": service, **urls})


@contextmanager
def _service(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "gradledger.cli", "serve", "--port", "0"]
    command += ["--db", f"sqlite:///{folder / 'zoo.db'}"]
    log = folder / "service.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "GRADLEDGER_ACCESS": "open"}
        )
    try:
        yield _listening(process, log)
    finally:
        process.terminate()
        process.wait()


def _listening(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        match = re.search(r"http://\S+", log.read_text())
        if match and match[0].startswith("http") and "listens" in log.read_text():
            return match[0]
        time.sleep(0.05)
    raise RuntimeError(f"the service did not start:\n{log.read_text()}")


@contextmanager
def _silent() -> Iterator[str]:
    """A socket that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def recorded_steps(url: str, project: str, spool: Path) -> int:
    """The number of optimizer steps of a project in the service or in the spool."""
    spooled = sum(file.read_bytes().count(b'"type":"step"') for file in spool.rglob("*.jsonl*"))
    return spooled + _stored_steps(url, project)


def _stored_steps(url: str, project: str) -> int:
    query = urllib.parse.urlencode({"search": project, "limit": 500})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/runs?{query}", timeout=2) as answer:
            rows = json.load(answer)["runs"]
    except (urllib.error.URLError, TimeoutError):
        return 0
    return sum(int(row["steps"]) for row in rows if row["project"] == project)
