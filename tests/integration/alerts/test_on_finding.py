"""``on_finding``: a training warns, stops, calls a function or continues after a finding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gradledger
from gradledger.delivery import pipeline as delivery
from gradledger.on_finding import FindingHandler, ReportedFinding
from gradledger.session import current
from gradledger.settings import Settings
from helpers import forkserver
from helpers.batches import eventually
from helpers.command import gradledger as run_command
from helpers.launching import CLASSIC, train
from helpers.patience import HANGS
from helpers.service import Service, running_service

RULE = "reduction.token_weights_unequal"
UNEQUAL, EQUAL = (2, 30), (5, 5)
MANY = 100_000  # steps, more than any test needs

_runs = itertools.count()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that evaluates records."""
    with running_service(tmp_path_factory.mktemp("findings") / "a.db") as running:
        yield running


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of the run in this test, without a spool; its end waits for the service."""
    monkeypatch.setattr(delivery, "EXIT_SECONDS", HANGS)
    monkeypatch.setattr(delivery, "EXIT_SECONDS_UNANSWERED", HANGS)
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

    def train_until(self, happened: Callable[[], object], rows: tuple[int, ...] = UNEQUAL) -> None:
        """Train until something happens, as fast as the service receives the records."""
        session = current()
        assert session is not None
        pipeline = session._pipeline
        while not happened():
            assert self.steps < MANY
            self.train(5, rows)
            assert eventually(HANGS, lambda: not pipeline._queue and not len(pipeline._buffer))

    def train_on(self, rows: tuple[int, ...] = UNEQUAL) -> None:
        """Train until something is raised."""
        self.train_until(lambda: False, rows)


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rules of the findings that the service sends to the training."""
    rules: list[str] = []
    handle = FindingHandler.on_findings

    def on_findings(self: FindingHandler, findings: Any) -> None:
        handle(self, findings)
        rules.extend(finding["rule"] for finding in findings)

    monkeypatch.setattr(FindingHandler, "on_findings", on_findings)
    return rules


def test_by_default_a_finding_is_printed_once_and_training_continues(
    service: Service, run: str, received: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(service.url)
    with training.ledger:
        training.train_until(lambda: received)
        training.train(20)
    assert f"/runs/{run}" in repr(training.ledger) and ", broken after " in repr(training.ledger)
    output = capfd.readouterr().err
    assert output.startswith("gradledger: ") and output.count(RULE) == 1
    headline, summary, url = output.splitlines()
    assert RULE in headline and "error" in headline and "\x1b" not in output
    assert summary.strip() and url.startswith(f"  {service.url}/runs/{run}")


def test_stop_raises_at_a_step_and_the_script_can_continue(service: Service, run: str) -> None:
    training = Training(service.url, on_finding="stop")
    with training.ledger:
        with pytest.raises(gradledger.FindingError) as raised:
            training.train_on()
        assert RULE in str(raised.value) and f"/runs/{run}" in str(raised.value)
        assert raised.value.finding.fix in str(raised.value)
        assert isinstance(raised.value, RuntimeError) and training.steps < MANY
        training.optimizer.step()  # the window of the step that was stopped is still complete
        training.optimizer.zero_grad()
        training.train(10)
    name = raised.value.finding.url.rpartition("/")[2]  # numbered: one process has several runs
    verdict = partial(service.get, f"/runs/{name}/verdict")
    assert eventually(HANGS, lambda: verdict().json()["steps"] == training.steps + 1)


def test_stop_applies_to_errors_or_also_to_warnings(service: Service, received: list[str]) -> None:
    slight = (28, 30)  # a misallocation that is only worth a warning
    training = Training(service.url, on_finding="stop")
    with training.ledger:
        training.train_until(lambda: received, slight)
        training.train(5, slight)
    training = Training(service.url, on_finding="stop:warning")
    with training.ledger, pytest.raises(gradledger.FindingError, match="warning since step 1"):
        training.train_on(slight)


def test_a_function_gets_the_finding_on_the_training_thread(service: Service) -> None:
    findings: list[ReportedFinding] = []

    def on_finding(finding: ReportedFinding) -> None:
        findings.append(finding)
        raise KeyError("enough")

    training = Training(service.url, on_finding=on_finding)
    with training.ledger, pytest.raises(KeyError, match="enough"):
        training.train_on()
    assert [(f.rule, f.severity, f.since_step) for f in findings] == [(RULE, "error", 1)]


def test_off_prints_nothing_and_a_healthy_run_is_never_stopped(
    service: Service, run: str, received: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(service.url, on_finding="off")
    with training.ledger:
        training.train_until(lambda: any(each["findings"] for each in verdicts(service, run)))
        training.train(5)
    healthy = Training(service.url, on_finding="stop:info")
    with healthy.ledger:
        healthy.train(20, EQUAL)
        healthy.train_until(
            lambda: any(
                each["steps"] >= 20 and not each["findings"] for each in verdicts(service, run)
            ),
            EQUAL,
        )
        healthy.train(5, EQUAL)
    assert received == []
    assert capfd.readouterr().err == ""


def verdicts(service: Service, run: str) -> list[dict[str, Any]]:
    """The verdicts on the trainings of one test."""
    ids = [each["id"] for each in service.get("/runs").json()["runs"]]
    own = [each for each in ids if each.startswith(f"{run}-")]
    return [service.get(f"/runs/{each}/verdict").json() for each in own]


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


def test_a_check_stops_at_the_first_finding_and_fails_for_it(tmp_path: Path) -> None:
    training = train(CLASSIC, MANY, python=str(forkserver.executable(tmp_path)))
    done = run_command("check", "--stop", "--", *training)
    assert done.returncode == 1, done.stderr
    assert "FindingError" in done.stderr and "trained" not in done.stdout
    assert "the command failed" in done.stderr and RULE in done.stderr
