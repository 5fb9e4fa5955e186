"""Schemathesis sends requests from the OpenAPI document to a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradledger_monitor.api.routes.ingest import EXAMPLE
from helpers.batches import batch, eventually, step
from helpers.guarded import ADMIN, guarded_service
from helpers.patience import HANGS
from helpers.service import Service, running_service

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
    "use_after_free",
)
LEFT_OUT = "/events$|/test$"  # one never ends where there is such a run; one sends to the world
HOOKS = Path(__file__).parents[2] / "helpers" / "json_lines.py"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with a run, which answers as fast as it is asked."""
    fast = {"reads_per_second": "0", "batches_per_second": "0", "alert_timeout": "1"}
    with running_service(tmp_path / "a.db", 0, **fast) as running:
        running.post(batch("r1", [step(1), step(2)]))
        assert eventually(HANGS, lambda: bool(running.get("/runs/r1").json()["steps"] == 2))
        yield running


def explore(url: str, folder: Path, *options: str) -> None:
    """Run Schemathesis; fails with its findings."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/api/v1/openapi.json"]
    command += ["--exclude-path-regex", LEFT_OUT, "--max-examples", "15", "--seed", "4"]
    command += ["--request-timeout", str(HANGS), "--continue-on-failure", "--no-color"]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)}
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_request_fails_and_every_response_is_documented(
    service: Service, tmp_path: Path
) -> None:
    explore(service.url, tmp_path, "--checks", ",".join(CHECKS))
    assert service.process.poll() is None and "Traceback" not in "".join(service.output)


# a part of it at once: wrong tokens are guesses, and of those one may make only some
@pytest.mark.parametrize("part", ["/alerts", "/runs", "^(?!.*(/alerts|/runs))"])
def test_a_token_is_required_wherever_the_document_requires_one(tmp_path: Path, part: str) -> None:
    with guarded_service(tmp_path, reads_per_second="0") as guarded:
        guarded.send(batch("r1", [step(1)]), ADMIN)
        bearer = f"Authorization: Bearer {ADMIN}"
        checks = "ignored_auth,status_code_conformance"
        few = ("--phases", "fuzzing", "--max-examples", "5")
        options = ("--checks", checks, "--header", bearer, "--include-path-regex", part)
        explore(guarded.url, tmp_path, *options, *few)


def test_the_example_in_the_document_is_a_batch(service: Service) -> None:
    assert service.post(EXAMPLE.encode()).json() == {"stored": 2, "duplicates": 0}
