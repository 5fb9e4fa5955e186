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

from helpers import http
from helpers.batches import batch, eventually, step
from helpers.compose import ROOT, environment, make_secrets, service
from helpers.patience import HANGS
from helpers.ports import reserved_port
from helpers.postgres import running_postgres
from helpers.service import Service, running_service

NDJSON = {"Content-Type": "application/x-ndjson"}

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx here")


@dataclass
class Deployment:
    """What runs: the proxy's address, the monitors behind it, the token of the owner."""

    url: str
    tls: str  # the address of a TLS proxy in front
    monitors: list[Service]
    token: str

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Make a request of the proxy, as the owner."""
        headers = {"Authorization": f"Bearer {self.token}", **NDJSON}
        return http.request(method, self.url + path, headers=headers, **options)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The secrets of a deployment."""
    return make_secrets(tmp_path_factory.mktemp("deploy"))


@pytest.fixture(scope="module")
def deployment(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Everything, on loopback."""
    folder = tmp_path_factory.mktemp("topology")
    told = environment("monitor", secrets)
    del told["GRADLEDGER_DB_FILE"]  # it names a host of the inner network
    told["GRADLEDGER_TRUSTED_PROXIES"] = "127.0.0.0/30"
    settings = {name.removeprefix("GRADLEDGER_").lower(): value for name, value in told.items()}
    settings["access"] = "auto"
    with ExitStack() as started:
        database = started.enter_context(running_postgres()).create()
        two = (running_service(database, 0, **settings) for _ in range(2))
        monitors = [started.enter_context(one) for one in two]
        ports = [started.enter_context(reserved_port()) for _ in range(2)]
        url = started.enter_context(_proxy(folder, monitors, ports[0]))
        tls = started.enter_context(_tls_proxy(folder, url, ports[1]))
        yield Deployment(url, tls, monitors, (secrets / "admin_token").read_text())


class _nginx:
    """nginx with this file, in which it listens on this port."""

    scheme = "http"

    def __init__(self, file: Path, text: str, port: int) -> None:
        self._file, self._port = file, port
        file.write_text(f"daemon off;\n{text}")

    def __enter__(self) -> str:
        command = ["nginx", "-c", str(self._file), "-e", "stderr"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        assert eventually(HANGS, self._listens)
        return f"{self.scheme}://127.0.0.1:{self._port}"

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(10)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


class _proxy(_nginx):
    """With the file of the deployment; only names and places are those of the test."""

    def __init__(self, folder: Path, monitors: list[Service], port: int) -> None:
        servers = "".join(f"server 127.0.0.1:{one.port};" for one in monitors)
        text = (ROOT / "deploy" / "nginx.conf").read_text()
        text = text.replace("http {", f"http {{ upstream monitors {{ {servers} }}", 1)
        text = text.replace("monitor:4777", "monitors")
        text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
        text = re.sub(r"resolver [^;]*;", "", text).replace("/tmp/", f"{folder}/")
        script = [ROOT / "deploy" / "tls-proxies.sh", folder / "tls-proxies.conf"]
        environment = {**os.environ, "GRADLEDGER_TLS_PROXIES": f"{TLS_PROXY}, 192.0.2.0/24"}
        subprocess.run(script, env=environment, check=True)
        super().__init__(folder / "nginx.conf", text, port)


class _tls_proxy(_nginx):
    """A TLS proxy in front of the deployment, on a machine of its own: another loopback address."""

    scheme = "https"

    def __init__(self, folder: Path, url: str, port: int) -> None:
        key, certificate = folder / "key.pem", folder / "certificate.pem"
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ]
        command += [
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ]
        subprocess.run(command, check=True, capture_output=True)
        text = TERMINATOR.format(
            folder=folder, port=port, key=key, certificate=certificate, address=TLS_PROXY, url=url
        )
        super().__init__(folder / "tls.conf", text, port)


TLS_PROXY = "127.0.0.2"
TERMINATOR = """
pid {folder}/tls.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/tls_body;
    proxy_temp_path {folder}/tls_proxy;
    fastcgi_temp_path {folder}/tls_fastcgi;
    uwsgi_temp_path {folder}/tls_uwsgi;
    scgi_temp_path {folder}/tls_scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        location / {{
            proxy_pass {url};
            proxy_bind {address};
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
        }}
    }}
}}
"""


def test_through_the_proxy_one_needs_a_token(deployment: Deployment) -> None:
    assert http.get(f"{deployment.url}/api/v1/runs").status_code == 401
    assert http.get(f"{deployment.url}/").headers["location"] == "/login?next=/"
    assert deployment.ask("GET", "/api/v1/runs").status_code == 200


def test_what_one_monitor_stored_the_other_shows(deployment: Deployment) -> None:
    bodies = [batch("shared", [step(number)]) for number in (1, 2, 3, 4)]
    sent = [deployment.ask("POST", "/api/v1/records", content=body) for body in bodies]
    assert [one.status_code for one in sent] == [200] * 4
    bearer = {"Authorization": f"Bearer {deployment.token}"}
    for monitor in deployment.monitors:
        url = f"{monitor.url}/api/v1/runs/shared/steps/0/4"
        assert http.get(url, headers=bearer).status_code == 200


def test_a_browser_that_logged_in_at_one_is_known_by_the_other(deployment: Deployment) -> None:
    with http.client(base_url=deployment.url, follow_redirects=True) as browser:
        browser.post("/login", data={"token": deployment.token})
        pages = [browser.get("/") for _ in range(6)]
    assert all("Log out" in page.text for page in pages)


def test_news_come_through_at_once(deployment: Deployment) -> None:
    deployment.ask("POST", "/api/v1/records", content=batch("live", [step(1)]))
    assert eventually(
        HANGS, lambda: deployment.ask("GET", "/api/v1/runs/live").json()["steps"] == 1
    )
    headers = {"Authorization": f"Bearer {deployment.token}"}
    url = f"{deployment.url}/api/v1/runs/live/events"
    with http.stream("GET", url, headers=headers) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        steps = (json.loads(line.removeprefix("data: "))["step"] for line in lines)
        assert next(steps) == 1
        deployment.ask("POST", "/api/v1/records", content=batch("live", [step(2)]))
        # the end of the evaluation of step 1 may be news, too
        assert next(told for told in steps if told != 1) == 2


def test_the_id_of_a_request_and_its_client_come_from_the_proxy(deployment: Deployment) -> None:
    lies = {"X-Request-ID": "mine", "X-Forwarded-For": "192.0.2.1"}
    answer = http.get(f"{deployment.url}/api/v1/runs", headers=lies)
    name = answer.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", name)

    def line() -> list[str]:
        return [said for one in deployment.monitors for said in one.output if name in said]

    assert eventually(HANGS, lambda: bool(line()))
    assert json.loads(line()[0])["client"] == "127.0.0.1"


def browser(address: str) -> httpx2.Client:
    """A client with an address of its own."""
    return httpx2.Client(
        transport=httpx2.HTTPTransport(local_address=address, verify=False), timeout=HANGS
    )


def logged_client(deployment: Deployment, request: str) -> str:
    """The address of the client in the log line of a request."""
    lines: list[str] = []

    def is_logged() -> bool:
        lines.extend(said for one in deployment.monitors for said in one.output if request in said)
        return bool(lines)

    assert eventually(HANGS, is_logged)
    return str(json.loads(lines[0])["client"])


def test_over_tls_the_cookie_is_secure_and_without_it_not(deployment: Deployment) -> None:
    form = {"token": deployment.token}
    lies = {"X-Forwarded-Proto": "https"}
    with browser("127.0.0.11") as one:
        over_tls = one.post(f"{deployment.tls}/login", data=form)
        plain = one.post(f"{deployment.url}/login", data=form, headers=lies)
    assert over_tls.status_code == plain.status_code == 303
    assert "secure" in over_tls.headers["set-cookie"].lower()
    assert "secure" not in plain.headers["set-cookie"].lower()


def test_through_two_proxies_the_client_is_the_one_that_connected(deployment: Deployment) -> None:
    lies = {"X-Forwarded-For": "192.0.2.77", "X-Real-IP": "192.0.2.78", "Forwarded": "for=1.2.3.4"}
    for address, url in (("127.0.0.12", deployment.tls), ("127.0.0.13", deployment.url)):
        for chain in ("198.51.100.1", "198.51.100.1, 127.0.0.2", "127.0.0.1"):
            with browser(address) as one:
                headers = {**lies, "X-Forwarded-For": chain}
                answer = one.get(f"{url}/api/v1/runs", headers=headers)
            assert logged_client(deployment, answer.headers["x-request-id"]) == address, chain


@pytest.mark.parametrize("through", ["tls", "url"])
def test_each_client_has_guesses_of_its_own_whatever_it_says(
    deployment: Deployment, through: str
) -> None:
    url = f"{getattr(deployment, through)}/login"
    guesser, other = (
        ("127.0.0.21", "127.0.0.22") if through == "tls" else ("127.0.0.23", "127.0.0.24")
    )
    with browser(guesser) as one:
        statuses = [
            one.post(
                url, data={"token": f"guess-{n}"}, headers={"X-Forwarded-For": f"198.51.100.{n}"}
            ).status_code
            for n in range(40)  # ten at once, at each of two monitors
        ]
    assert statuses[0] == 401 and 429 in statuses
    with browser(other) as two:
        assert [two.post(url, data={"token": "guess"}).status_code for _ in range(4)] == [401] * 4


def test_a_batch_too_large_and_metrics_stop_at_the_proxy(deployment: Deployment) -> None:
    large = deployment.ask("POST", "/api/v1/records", content=b" " * (33 * 2**20))
    assert large.status_code == 413
    assert deployment.ask("GET", "/metrics").status_code == 404


def test_the_health_check_tells_a_living_monitor_from_a_dead_one(deployment: Deployment) -> None:
    _, *command = service("monitor")["healthcheck"]["test"]
    with reserved_port() as closed:
        for port, status in ((deployment.monitors[0].port, 0), (closed, 1)):
            asked = [part.replace("4777", str(port)) for part in command]
            asked[0] = sys.executable
            done = subprocess.run(asked, capture_output=True, timeout=HANGS, env=dict(os.environ))
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
