"""``on_finding``: a training warns, stops, calls a function or continues after a finding."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gradledger
from gradledger.on_finding import ReportedFinding
from gradledger.settings import Settings
from helpers.batches import eventually
from helpers.service import Service, running_service

RULE = "reduction.token_weights_unequal"
UNEQUAL, EQUAL = (2, 30), (5, 5)
MANY = 3_000  # steps, more than any test needs
PAUSE = 0.02
TRAIN = Path(__file__).parent.parent / "launcher" / "scripts" / "train.py"

_runs = itertools.count()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that evaluates records."""
    with running_service(tmp_path_factory.mktemp("findings") / "a.db") as running:
        yield running


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of the run in this test, without a spool."""
    name = f"run-{next(_runs)}"
    monkeypatch.setenv("GRADLEDGER_RUN", name)
    monkeypatch.setenv("GRADLEDGER_SPOOL", "off")
    return name


class Training:
    """A model in training, with hooks."""

    def __init__(self, url: str, **options: Any) -> None:
        self.model = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.ledger = gradledger.watch(optimizer=self.optimizer, url=url, **options)
        self.steps = 0

    def train(self, steps: int, rows: tuple[int, ...] = UNEQUAL) -> None:
        """Average the means of micro-batches with these numbers of rows."""
        for _ in range(steps):
            for count in rows:
                inputs, labels = torch.randn(count, 4), torch.randint(3, (count,))
                (F.cross_entropy(self.model(inputs), labels) / len(rows)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1
            time.sleep(PAUSE)

    def until(self, text: str, capture: pytest.CaptureFixture[str], seconds: float = 30) -> str:
        """Train until a text is on stderr; return all of stderr until then."""
        output, end = "", time.monotonic() + seconds
        while text not in output and time.monotonic() < end:
            self.train(5)
            output += capture.readouterr().err
        return output


def test_by_default_a_finding_is_printed_once_and_training_continues(
    service: Service, run: str, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(service.url)
    with training.ledger:
        output = training.until(RULE, capfd)
        training.train(20)
    output += capfd.readouterr().err
    assert output.startswith("gradledger: ") and output.count(RULE) == 1
    assert output.count("\n") == 1 and f"{service.url}/runs/{run}" in output


def test_stop_raises_at_a_step_and_the_script_can_continue(service: Service, run: str) -> None:
    training = Training(service.url, on_finding="stop")
    with training.ledger:
        with pytest.raises(gradledger.FindingError) as raised:
            training.train(MANY)
        assert RULE in str(raised.value) and f"/runs/{run}" in str(raised.value)
        assert raised.value.finding.fix in str(raised.value)
        assert isinstance(raised.value, RuntimeError) and training.steps < MANY
        training.optimizer.step()  # the window of the step that was stopped is still whole
        training.optimizer.zero_grad()
        training.train(10)
    name = raised.value.finding.url.rpartition("/")[2]  # several trainings of one process count on
    verdict = partial(service.get, f"/runs/{name}/verdict")
    assert eventually(60, lambda: verdict().json()["steps"] == training.steps + 1)


def test_stop_applies_to_errors_or_also_to_warnings(service: Service) -> None:
    slight = (28, 30)  # a misallocation that is only worth a warning
    training = Training(service.url, on_finding="stop")
    with training.ledger:
        training.train(40, slight)
    training = Training(service.url, on_finding="stop:warning")
    with training.ledger, pytest.raises(gradledger.FindingError, match="warning since step 1"):
        training.train(MANY, slight)


def test_a_function_gets_the_finding_on_the_training_thread(service: Service) -> None:
    findings: list[ReportedFinding] = []

    def on_finding(finding: ReportedFinding) -> None:
        findings.append(finding)
        raise KeyError("enough")

    training = Training(service.url, on_finding=on_finding)
    with training.ledger, pytest.raises(KeyError, match="enough"):
        training.train(MANY)
    assert [(f.rule, f.severity, f.since_step) for f in findings] == [(RULE, "error", 1)]


def test_off_prints_nothing_and_a_healthy_run_is_never_stopped(
    service: Service, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(service.url, on_finding="off")
    with training.ledger:
        training.train(40)
    healthy = Training(service.url, on_finding="stop:info")
    with healthy.ledger:
        healthy.train(40, EQUAL)
    assert capfd.readouterr().err == ""


def test_an_invalid_value_is_refused_or_ignored(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="warn, stop or off"):
        gradledger.watch(on_finding="panic")
    settings = Settings.from_environment({"GRADLEDGER_ON_FINDING": "stop:loudly"})
    assert settings.on_finding.action == "warn"
    assert "GRADLEDGER_ON_FINDING='stop:loudly' is ignored" in capfd.readouterr().err


def test_without_a_service_nothing_is_stopped() -> None:
    training = Training("http://127.0.0.1:9", on_finding="stop")
    with training.ledger:
        training.train(30)


def test_a_check_stops_at_the_first_finding_and_fails_for_it() -> None:
    check = [sys.executable, "-m", "gradledger_monitor.cli", "check", "--stop", "--"]
    command = [*check, sys.executable, str(TRAIN), "mean-of-means", str(MANY), str(PAUSE)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "FindingError" in done.stderr and "trained" not in done.stdout
    assert "the command failed" in done.stderr and RULE in done.stderr
