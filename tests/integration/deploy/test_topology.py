"""The topology of ``docker-compose.yml`` in real processes, the proxy with its own file."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from helpers.batches import batch, eventually, step
from helpers.compose import ROOT, environment, service
from helpers.postgres import running_postgres
from helpers.service import Service, running_service

NDJSON = {"Content-Type": "application/x-ndjson"}

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx here")


@dataclass
class Deployment:
    """What runs: the proxy's address, the monitors behind it, the token of the owner."""

    url: str
    monitors: list[Service]
    token: str

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Make a request of the proxy, as the owner."""
        headers = {"Authorization": f"Bearer {self.token}", **NDJSON}
        return httpx2.request(method, self.url + path, headers=headers, timeout=30, **options)


@pytest.fixture(scope="module")
def deployment(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Everything, on loopback."""
    folder = tmp_path_factory.mktemp("topology")
    told = environment("monitor", secrets)
    del told["GRADLEDGER_DB_FILE"]  # it names a host of the inner network
    told["GRADLEDGER_TRUSTED_PROXIES"] = "127.0.0.1"
    settings = {name.removeprefix("GRADLEDGER_").lower(): value for name, value in told.items()}
    settings["access"] = "auto"
    with ExitStack() as started:
        database = started.enter_context(running_postgres()).create()
        two = (running_service(database, 0, **settings) for _ in range(2))
        monitors = [started.enter_context(one) for one in two]
        url = started.enter_context(_proxy(folder, monitors))
        yield Deployment(url, monitors, (secrets / "admin_token").read_text())


class _proxy:
    """nginx with the file of the deployment; only names and places are those of the test."""

    def __init__(self, folder: Path, monitors: list[Service]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        servers = "".join(f"server 127.0.0.1:{one.port};" for one in monitors)
        text = (ROOT / "deploy" / "nginx.conf").read_text()
        text = text.replace("http {", f"http {{ upstream monitors {{ {servers} }}", 1)
        text = text.replace("monitor:4777", "monitors")
        text = text.replace("listen 8080", f"listen 127.0.0.1:{self._port}")
        text = re.sub(r"resolver [^;]*;", "", text).replace("/tmp/", f"{folder}/")
        self._file = folder / "nginx.conf"
        self._file.write_text("daemon off;\n" + text)

    def __enter__(self) -> str:
        command = ["nginx", "-c", str(self._file), "-e", "stderr"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        assert eventually(60, self._listens)
        return f"http://127.0.0.1:{self._port}"

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(10)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


def test_through_the_proxy_one_needs_a_token(deployment: Deployment) -> None:
    assert httpx2.get(f"{deployment.url}/api/v1/runs").status_code == 401
    assert httpx2.get(f"{deployment.url}/").headers["location"] == "/login?next=/"
    assert deployment.ask("GET", "/api/v1/runs").status_code == 200


def test_what_one_monitor_stored_the_other_shows(deployment: Deployment) -> None:
    bodies = [batch("shared", [step(number)]) for number in (1, 2, 3, 4)]
    sent = [deployment.ask("POST", "/api/v1/records", content=body) for body in bodies]
    assert [one.status_code for one in sent] == [200] * 4
    bearer = {"Authorization": f"Bearer {deployment.token}"}
    for monitor in deployment.monitors:
        url = f"{monitor.url}/api/v1/runs/shared/steps/0/4"
        assert httpx2.get(url, headers=bearer).status_code == 200


def test_a_browser_that_logged_in_at_one_is_known_by_the_other(deployment: Deployment) -> None:
    with httpx2.Client(base_url=deployment.url, follow_redirects=True) as browser:
        browser.post("/login", data={"token": deployment.token})
        pages = [browser.get("/") for _ in range(6)]
    assert all("Log out" in page.text for page in pages)


def test_news_come_through_at_once(deployment: Deployment) -> None:
    deployment.ask("POST", "/api/v1/records", content=batch("live", [step(1)]))
    assert eventually(15, lambda: deployment.ask("GET", "/api/v1/runs/live").json()["steps"] == 1)
    headers = {"Authorization": f"Bearer {deployment.token}"}
    url = f"{deployment.url}/api/v1/runs/live/events"
    told: list[int] = []
    with httpx2.stream("GET", url, headers=headers, timeout=15) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        told.append(json.loads(next(lines).removeprefix("data: "))["step"])
        deployment.ask("POST", "/api/v1/records", content=batch("live", [step(2)]))
        told.append(json.loads(next(lines).removeprefix("data: "))["step"])
    assert told == [1, 2]


def test_the_id_of_a_request_and_its_client_come_from_the_proxy(deployment: Deployment) -> None:
    lies = {"X-Request-ID": "mine", "X-Forwarded-For": "192.0.2.1"}
    answer = httpx2.get(f"{deployment.url}/api/v1/runs", headers=lies)
    name = answer.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", name)

    def line() -> list[str]:
        return [said for one in deployment.monitors for said in one.output if name in said]

    assert eventually(60, lambda: bool(line()))
    assert json.loads(line()[0])["client"] == "127.0.0.1"


def test_a_batch_too_large_and_metrics_stop_at_the_proxy(deployment: Deployment) -> None:
    large = deployment.ask("POST", "/api/v1/records", content=b" " * (33 * 2**20))
    assert large.status_code == 413
    assert deployment.ask("GET", "/metrics").status_code == 404


def test_the_health_check_tells_a_living_monitor_from_a_dead_one(deployment: Deployment) -> None:
    _, *command = service("monitor")["healthcheck"]["test"]
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = nobody.getsockname()[1]
    for port, status in ((deployment.monitors[0].port, 0), (closed, 1)):
        asked = [part.replace("4777", str(port)) for part in command]
        asked[0] = sys.executable
        done = subprocess.run(asked, capture_output=True, timeout=30, env=dict(os.environ))
        assert done.returncode == status


def test_when_a_monitor_dies_the_other_takes_the_records(deployment: Deployment) -> None:
    deployment.monitors[1].kill()
    numbers = range(1, 9)
    statuses: list[int] = []

    def send(number: int) -> None:
        body = batch("bereft", [step(number)])
        statuses.append(deployment.ask("POST", "/api/v1/records", content=body).status_code)

    senders = [threading.Thread(target=send, args=(number,)) for number in numbers]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert statuses == [200] * len(numbers)
