"""Everything that the OpenAPI document allows and forbids, drawn by Schemathesis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from attack.arena import Arena
from attack.outcome import Outcome
from helpers.batches import batch, eventually, step

# one never ends where there is such a run; one sends to the world
LEFT_OUT = "/events$|/test$"
HOOKS = Path(__file__).parents[1] / "helpers" / "json_lines.py"
# values that a schema cannot exclude may be refused: a time in the past, an unknown rule
CONFIGURATION = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 413, 415, 422, 429]
"""
SHORT_SECONDS = 30  # below which sequences of requests are left out
CASES = re.compile(r"(\d+) generated")


def attack(arena: Arena) -> Iterator[Outcome]:
    """All checks of Schemathesis."""
    outcome = Outcome("Schemathesis, all checks")
    with arena.service(outcome, alert_timeout="1") as service:
        service.post(batch("r1", [step(1), step(2)]))
        eventually(60, lambda: bool(service.get("/runs/r1").json()["steps"] == 2))
        configuration = arena.folder / "schemathesis.toml"
        configuration.write_text(CONFIGURATION)
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration)]
        command += ["run"]
        command += [f"{service.url}/api/v1/openapi.json", "--checks", "all"]
        command += ["--exclude-path-regex", LEFT_OUT, "--seed", "4", "--no-color"]
        command += ["--max-examples", str(max(3, round(arena.seconds / 3)))]
        if arena.seconds < SHORT_SECONDS:
            command += ["--phases", "examples,coverage,fuzzing"]
        command += ["--request-timeout", "20", "--continue-on-failure"]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)}
        done = subprocess.run(
            command, cwd=arena.folder, env=environment, capture_output=True, text=True, timeout=900
        )
    outcome.tried(sum(map(int, CASES.findall(done.stdout))))
    if done.returncode:
        outcome.fault(done.stdout[-6_000:] + done.stderr[-2_000:])
    yield outcome
