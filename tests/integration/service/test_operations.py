"""What an operator works with: metrics, logs of requests, the configuration, a clean end."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gradledger import __version__
from gradledger.delivery.encoding import encode
from helpers import http
from helpers.batches import EndRecord, batch, eventually, step
from helpers.command import gradledger
from helpers.patience import HANGS
from helpers.service import Service, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that logs everything, as JSON."""
    folder = tmp_path_factory.mktemp("operated")
    with running_service(folder / "a.db", log_level="debug", log_format="json") as running:
        yield running


def metrics(service: Service) -> dict[str, float]:
    """All samples by name and labels."""
    text = http.get(f"{service.url}/metrics").text
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def logged(service: Service) -> list[dict[str, Any]]:
    """Every line that was logged, each one a JSON object."""
    lines = [line for line in service.output if not line.startswith("gradledger listens")]
    return [json.loads(line) for line in lines]


def test_metrics_count_records_by_outcome(service: Service) -> None:
    body = batch("counted", [step(1), step(2), EndRecord(3.0, [2])])
    assert service.post(body).status_code == 200
    assert service.post(body + b"nonsense\n").status_code == 422
    assert eventually(
        HANGS, lambda: metrics(service).get("gradledger_evaluated_steps_total{}") == 2
    )
    assert eventually(HANGS, lambda: metrics(service)["gradledger_runs_pending{}"] == 0)
    values = metrics(service)
    assert values['gradledger_records_total{"outcome": "stored"}'] == 3
    assert values['gradledger_records_total{"outcome": "duplicate"}'] == 3
    assert values['gradledger_records_total{"outcome": "refused"}'] == 1
    assert values["gradledger_ingest_seconds_count{}"] == 2
    build = json.dumps({"rules": "python", "version": __version__})
    assert values[f"gradledger_build_info{build}"] == 1
    assert values['gradledger_ingest_lag_seconds_bucket{"le": "86400.0"}'] == 0  # steps of 1970
    assert values['gradledger_runs{"verdict": "broken"}'] == 1
    unequal = {"lifecycle": "ongoing", "rule": "reduction.token_weights_unequal"}
    assert any(
        name.startswith("gradledger_findings") and unequal["rule"] in name and value == 1
        for name, value in values.items()
    )
    assert values["gradledger_ingest_queue{}"] == 0
    assert values["gradledger_evaluation_seconds_count{}"] >= 1
    request = '{"method": "POST", "route": "/api/v1/records", "status": "422"}'
    assert values[f"gradledger_request_seconds_count{request}"] == 1


def test_unknown_addresses_create_no_metrics(service: Service) -> None:
    before = len(metrics(service))
    for number in range(5):
        http.get(f"{service.url}/nowhere/{number}")
        http.request(f"ODD{number}", f"{service.url}/nowhere")
        service.get(f"/runs/nobody-{number}")
    assert len(metrics(service)) - before < 4 * 18  # a histogram each: 404, 405 and the run's route


def test_every_request_has_an_id_that_its_log_line_has_too(service: Service) -> None:
    given = service.get("/runs")
    name = given.headers["x-request-id"]
    assert eventually(
        HANGS, lambda: any(line.get("request_id") == name for line in logged(service))
    )
    (line,) = [line for line in logged(service) if line.get("request_id") == name]
    assert (line["method"], line["path"], line["status"]) == ("GET", "/api/v1/runs", 200)
    assert line["level"] == "info" and line["ms"] > 0 and line["time"].endswith("Z")


def test_a_valid_request_id_of_a_proxy_is_used(service: Service) -> None:
    sent = {"X-Request-ID": "proxy-7.42"}
    assert http.get(f"{service.url}/healthz", headers=sent).headers["x-request-id"] == "proxy-7.42"
    for odd in ("a b", "x" * 65, '"}{"level":"error', "\x1b[31m"):
        answer = http.get(f"{service.url}/healthz", headers={"X-Request-ID": odd})
        assert answer.headers["x-request-id"] != odd


def test_content_of_requests_cannot_forge_log_lines(service: Service) -> None:
    forged = '{"level":"error","message":"all is lost"}'
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        path = f"/%0a{forged.replace(' ', '%20')}%0a%1b[31m"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b"404" in connection.recv(4096)
    hostile = {"name": f"x\n{forged}\n\x1b[31m", "config": {"a": f"\n{forged}"}}
    assert service.post(batch("hostile", [step(1)], **hostile)).status_code == 200
    assert eventually(
        HANGS, lambda: any("\x1b" in str(line.get("path")) for line in logged(service))
    )
    assert not [line for line in logged(service) if line["message"] == "all is lost"]
    assert "\x1b" not in "".join(service.output)


def test_the_log_line_of_a_failed_request_has_its_id(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db", log_format="json") as service:
        assert service.post(batch("damaged", [step(1)])).status_code == 200
        with sqlite3.connect(tmp_path / "a.db", timeout=HANGS) as kept:
            kept.execute("UPDATE runs SET config = x'c1'")  # a byte that MessagePack never uses
        answer = service.get("/runs/damaged")
        name = answer.headers["x-request-id"]
        assert answer.status_code == 500 and answer.json()["request_id"] == name
        assert "default-src" in answer.headers["content-security-policy"]
        assert eventually(HANGS, lambda: any(x.get("request_id") == name for x in logged(service)))
        (line,) = [line for line in logged(service) if line.get("request_id") == name]
        assert "MessagePack data is malformed" in line["exception"]


def test_the_text_format_has_one_line_per_event(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db", log_level="info", log_format="text") as service:
        http.get(f"{service.url}/a%0ab%1b[0m")
        assert eventually(HANGS, lambda: any("/a\\nb\\x1b" in line for line in service.output))
        assert "\x1b" not in "".join(service.output)


# ---------------------------------------------------------------- configuration


def config(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `gradledger config` prints in an environment and a home of its own."""
    home = {"HOME": str(tmp_path), "COLUMNS": "200"}
    env = {**os.environ, **home, **environment}
    return gradledger("config", environment=env)


def test_the_configuration_lists_the_source_of_each_value(tmp_path: Path) -> None:
    secret = tmp_path / "db-secret"
    secret.write_text("postgresql+psycopg://me:hidden@host/name\n")
    file = tmp_path / "settings.toml"
    file.write_text('port = 5000\nhost = "::1"\nallowed_hosts = ["a.example"]\n')
    told = config(
        tmp_path,
        GRADLEDGER_DB_FILE=str(secret),
        GRADLEDGER_CONFIG=str(file),
        GRADLEDGER_PORT="6000",
        GRADLEDGER_ADMIN_TOKEN="hidden" * 6,
    ).stdout.splitlines()
    assert "GRADLEDGER_DB=postgresql+psycopg://me:***@host/name  (GRADLEDGER_DB_FILE)" in told
    assert "GRADLEDGER_PORT=6000  (GRADLEDGER_PORT)" in told
    assert f"GRADLEDGER_HOST=::1  ({file})" in told
    assert f'GRADLEDGER_ALLOWED_HOSTS=["a.example"]  ({file})' in told
    assert "GRADLEDGER_ADMIN_TOKEN=(set, hidden)  (GRADLEDGER_ADMIN_TOKEN)" in told
    assert "GRADLEDGER_LOG_LEVEL=warning  (default)" in told
    assert "# token required" in told
    assert "hidden@" not in "".join(told) and "hiddenhidden" not in "".join(told)


def test_the_file_in_the_home_folder_is_read_by_default(tmp_path: Path) -> None:
    (tmp_path / ".gradledger").mkdir()
    (tmp_path / ".gradledger" / "gradledger.toml").write_text("rank_timeout = 5\n")
    assert "GRADLEDGER_RANK_TIMEOUT=5.0  (" in config(tmp_path).stdout


@pytest.mark.parametrize(
    ("environment", "file", "why"),
    [
        ({}, "prot = 1\n", "there is no setting prot"),
        ({}, "port = \n", "gradledger.toml"),
        ({}, 'port = "many"\n', "gradledger.toml: port=many: Input should be a valid integer"),
        ({"GRADLEDGER_CONFIG": "/nowhere.toml"}, "", "/nowhere.toml: there is no such file"),
        ({"GRADLEDGER_DB_FILE": "/nowhere"}, "", "GRADLEDGER_DB_FILE=/nowhere"),
        ({"GRADLEDGER_DB": "a", "GRADLEDGER_DB_FILE": "b"}, "", "are both set"),
        ({"GRADLEDGER_RULES_OFF": "not json"}, "", "rules_off"),
    ],
    ids=str,
)
def test_an_invalid_configuration_is_refused_with_the_reason(
    tmp_path: Path, environment: dict[str, str], file: str, why: str
) -> None:
    (tmp_path / ".gradledger").mkdir()
    (tmp_path / ".gradledger" / "gradledger.toml").write_text(file)
    done = config(tmp_path, **environment)
    assert done.returncode == 2 and why in done.stderr and "Traceback" not in done.stderr


# ---------------------------------------------------------------- the end


def test_on_sigterm_it_stores_the_batch_that_it_has_begun_to_read(tmp_path: Path) -> None:
    body = batch("drained", [step(1), step(2)])
    half = len(body) // 2
    head = (
        "POST /api/v1/records HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        f"Content-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with running_service(tmp_path / "a.db") as service:
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(head.encode())
            assert connection.recv(4096).startswith(b"HTTP/1.1 100")  # it reads the body
            connection.sendall(body[:half])
            service.process.terminate()
            assert eventually(HANGS, lambda: not _listens(service.port))
            connection.sendall(body[half:])
            assert b" 200 " in connection.recv(4096).split(b"\r\n")[0]
        assert service.process.wait(HANGS) == 0
    with running_service(tmp_path / "a.db") as service:
        assert service.post(body).json() == {"stored": 0, "duplicates": 2}
        assert service.post(batch("drained", []) + encode(step(3))).json()["stored"] == 1


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
