"""Acknowledgements: stored, shown, removed, and not valid for a later recurrence."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradledger_monitor.ingest import decode
from gradledger_monitor.model.findings import Acknowledgement, Finding
from gradledger_monitor.reports.verdict_json import verdict_json
from gradledger_monitor.store.alerts.acknowledgements import (
    NoSuchFinding,
    acknowledge,
    remove_acknowledgement,
)
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import listing
from gradledger_monitor.store.runs.queries import UnknownRun, evaluation
from gradledger_monitor.store.steps.ingest import store_batch
from helpers import command, http
from helpers.batches import batch, eventually, fair_step, step
from helpers.guarded import ADMIN, guarded_service
from helpers.patience import HANGS
from helpers.sending import evaluate_pending
from helpers.service import Service

RULE = "reduction.token_weights_unequal"
NOTE = Acknowledgement("lengths are meant to differ", "Ada", at=100.0)


def findings_after(
    store: Store, *records: Any, now: float | None = None, **run: Any
) -> list[Finding]:
    """Store records of run r and evaluate them; return its findings."""
    store_batch(store, decode.read(batch("r", records, **run)), 1.0)
    evaluate_pending(store, rank_timeout=0)
    return evaluation(store, "r", now).findings


def test_an_acknowledgement_stays_with_the_finding_in_later_evaluations(
    store: Store,
) -> None:
    findings_after(store, step(1))
    acknowledge(store, "r", RULE, NOTE)
    (finding,) = findings_after(store, step(2), step(3))
    assert finding.acknowledged == NOTE
    assert (finding.lifecycle, evaluation(store, "r").verdict) == ("ongoing", "broken")
    shown = verdict_json("r", 3, 1, evaluation(store, "r"))["findings"][0]
    assert shown["acknowledged"] == {"note": NOTE.note, "by": "Ada", "at": 100.0, "until": None}


def test_the_list_of_runs_counts_acknowledged_findings(store: Store) -> None:
    findings_after(store, step(1))
    assert listing.acknowledged(store, ["r"], now=150.0) == {}
    acknowledge(store, "r", RULE, replace(NOTE, until=200.0))
    assert listing.acknowledged(store, ["r"], now=150.0) == {"r": listing.Acknowledged(1, 1)}
    assert listing.acknowledged(store, ["r"], now=250.0) == {}  # the snooze is over


def test_a_regression_is_not_acknowledged(store: Store) -> None:
    findings_after(store, step(1))
    acknowledge(store, "r", RULE, NOTE)
    (resolved,) = findings_after(store, *map(fair_step, range(2, 25)))
    assert (resolved.lifecycle, resolved.acknowledged) == ("resolved", NOTE)
    (regressed,) = findings_after(store, step(25))
    assert (regressed.lifecycle, regressed.acknowledged) == ("regressed", None)
    (ongoing,) = findings_after(store, step(26))
    assert (ongoing.lifecycle, ongoing.since_step, ongoing.acknowledged) == ("ongoing", 25, None)
    acknowledge(store, "r", RULE, NOTE)
    assert evaluation(store, "r").findings[0].acknowledged == NOTE


def test_a_later_finding_of_another_optimizer_is_not_acknowledged(store: Store) -> None:
    findings_after(store, step(1), optimizers=["SGD", "SGD"])
    acknowledge(store, "r", RULE, NOTE)
    findings = findings_after(store, step(2), step(1, optimizer=1), optimizers=["SGD", "SGD"])
    assert {f.optimizer: f.acknowledged for f in findings} == {0: NOTE, 1: None}


def test_an_acknowledgement_expires(store: Store) -> None:
    findings_after(store, step(1))
    acknowledge(store, "r", RULE, Acknowledgement("not this week", None, 100.0, until=200.0))
    assert evaluation(store, "r", now=199.0).findings[0].acknowledged is not None
    assert evaluation(store, "r", now=200.0).findings[0].acknowledged is None


def test_an_acknowledgement_is_replaced_and_removed(store: Store) -> None:
    findings_after(store, step(1))
    acknowledge(store, "r", RULE, NOTE)
    second = Acknowledgement("on reflection", None, 101.0)
    acknowledge(store, "r", RULE, second)
    assert evaluation(store, "r").findings[0].acknowledged == second
    remove_acknowledgement(store, "r", RULE)
    assert evaluation(store, "r").findings[0].acknowledged is None
    with pytest.raises(NoSuchFinding, match="nobody"):
        remove_acknowledgement(store, "r", RULE)


def test_only_a_finding_of_a_known_run_can_be_acknowledged(store: Store) -> None:
    findings_after(store, step(1))
    with pytest.raises(NoSuchFinding, match="found nothing"):
        acknowledge(store, "r", "loop.double_step", NOTE)
    with pytest.raises(UnknownRun):
        acknowledge(store, "nobody", RULE, NOTE)


# ---------------------------------------------------------------- over HTTP and on the command line


@pytest.fixture
def url(service: Service) -> str:
    """The URL of the acknowledgement of a finding."""
    service.post(batch("a", [step(1)]))
    assert eventually(HANGS, lambda: bool(service.get("/runs/a").json()["steps"] == 1))
    return f"{service.url}/api/v1/runs/a/findings/{RULE}/acknowledgement"


def of_the_run(service: Service) -> dict[str, Any] | None:
    """The acknowledgement in the verdict."""
    (finding,) = service.get("/runs/a/verdict").json()["findings"]
    acknowledgement: dict[str, Any] | None = finding["acknowledged"]
    return acknowledgement


def test_put_and_delete_over_http(service: Service, url: str) -> None:
    answer = http.put(url, json={"note": " known <b>well</b> ", "by": "Ada"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["note"] == "known <b>well</b>"
    assert of_the_run(service) == answer.json()
    page = http.get(f"{service.url}/runs/a").text
    assert "by Ada" in page and "known &lt;b&gt;well&lt;/b&gt;" in page
    assert http.delete(url).status_code == 204
    assert of_the_run(service) is None
    assert http.delete(url).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body.note"),
        ({"note": "  "}, "body.note"),
        ({"note": "a\0b"}, "body.note"),
        ({"note": "known", "until": 1.0}, "body.until"),
        ({"note": "known", "by": ""}, "body.by"),
    ],
)
def test_an_invalid_request_is_refused_with_the_field(
    url: str, body: dict[str, Any], field: str
) -> None:
    answer = http.put(url, json=body)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_an_unknown_run_or_finding_is_named(service: Service, url: str) -> None:
    for run, rule in (("nobody", RULE), ("a", "loop.double_step")):
        unknown = f"{service.url}/api/v1/runs/{run}/findings/{rule}/acknowledgement"
        answer = http.put(unknown, json={"note": "known"})
        assert answer.status_code == 404 and run in answer.json()["detail"]


def test_the_name_of_the_token_is_recorded(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as guarded:
        guarded.send(batch("r", [step(1)]), ADMIN)
        steps = "/api/v1/runs/r"
        assert eventually(HANGS, lambda: bool(guarded.get(steps, ADMIN).json()["steps"] == 1))
        path = f"/api/v1/runs/r/findings/{RULE}/acknowledgement"
        answer = guarded.ask("PUT", path, guarded.token("admin"), json={"note": "known"})
        assert (answer.status_code, answer.json()["by"]) == (200, "someone")


def gradledger(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, on the service's database."""
    wide = {**os.environ, "COLUMNS": "200"}
    call = "acknowledge", *arguments, "--db", service.database
    return command.gradledger(*call, environment=wide)


def test_the_command_line_acknowledges_and_removes(service: Service, url: str) -> None:
    done = gradledger(service, "a", RULE, "--note", "known", "--until", "2999-01-01")
    assert done.returncode == 0, done.stderr
    stored = of_the_run(service)
    assert stored is not None and stored["note"] == "known" and stored["by"]
    done = gradledger(service, "a run", RULE, "--undo")  # its name
    assert done.returncode == 0, done.stderr
    assert of_the_run(service) is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nobody", RULE, "--note", "known"], "nobody"),
        (["a", "loop.double_step", "--note", "known"], "found nothing"),
        (["a", RULE], "--undo"),
        (["a", RULE, "--note", "known", "--undo"], "--undo"),
        (["a", RULE, "--note", " "], "--note"),
        (["a", RULE, "--note", "known", "--until", "2001-01-01"], "--until"),
    ],
)
def test_the_command_line_names_the_error(
    service: Service, url: str, arguments: list[str], reason: str
) -> None:
    done = gradledger(service, *arguments)
    assert done.returncode == 2
    assert reason in done.stderr and "Traceback" not in done.stderr
