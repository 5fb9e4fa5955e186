"""A person's word on a finding: kept, shown, taken back, and never said of what comes later."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import httpx2
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
from gradledger_monitor.store.runs.queries import UnknownRun, evaluation
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.workers.evaluator import evaluate_pending
from helpers import command
from helpers.batches import batch, eventually, fair_step, step
from helpers.guarded import ADMIN, guarded_service
from helpers.service import Service

RULE = "reduction.token_weights_unequal"
SAID = Acknowledgement("lengths are meant to differ", "Ada", at=100.0)


def judged(store: Store, *records: Any, now: float | None = None, **said: Any) -> list[Finding]:
    """Store records of run r, judge them, and give what is found."""
    store_batch(store, decode.read(batch("r", records, **said)), 1.0)
    evaluate_pending(store, rank_timeout=0)
    return evaluation(store, "r", now).findings


def test_what_was_said_stands_beside_the_finding_and_outlives_later_judgements(
    store: Store,
) -> None:
    judged(store, step(1))
    acknowledge(store, "r", RULE, SAID)
    (finding,) = judged(store, step(2), step(3))
    assert finding.acknowledged == SAID
    assert (finding.lifecycle, evaluation(store, "r").verdict) == ("ongoing", "broken")
    told = verdict_json("r", 3, 1, evaluation(store, "r"))["findings"][0]
    assert told["acknowledged"] == {"note": SAID.note, "by": "Ada", "at": 100.0, "until": None}


def test_what_comes_back_after_it_was_resolved_is_news(store: Store) -> None:
    judged(store, step(1))
    acknowledge(store, "r", RULE, SAID)
    (resolved,) = judged(store, *map(fair_step, range(2, 25)))
    assert (resolved.lifecycle, resolved.acknowledged) == ("resolved", SAID)
    (regressed,) = judged(store, step(25))
    assert (regressed.lifecycle, regressed.acknowledged) == ("regressed", None)
    (ongoing,) = judged(store, step(26))
    assert (ongoing.lifecycle, ongoing.since_step, ongoing.acknowledged) == ("ongoing", 25, None)
    acknowledge(store, "r", RULE, SAID)
    assert evaluation(store, "r").findings[0].acknowledged == SAID


def test_another_optimizer_that_shows_it_later_is_not_covered(store: Store) -> None:
    judged(store, step(1), optimizers=["SGD", "SGD"])
    acknowledge(store, "r", RULE, SAID)
    found = judged(store, step(2), step(1, optimizer=1), optimizers=["SGD", "SGD"])
    assert {f.optimizer: f.acknowledged for f in found} == {0: SAID, 1: None}


def test_it_counts_until_it_runs_out(store: Store) -> None:
    judged(store, step(1))
    acknowledge(store, "r", RULE, Acknowledgement("not this week", None, 100.0, until=200.0))
    assert evaluation(store, "r", now=199.0).findings[0].acknowledged is not None
    assert evaluation(store, "r", now=200.0).findings[0].acknowledged is None


def test_saying_it_again_replaces_it_and_taking_it_back_removes_it(store: Store) -> None:
    judged(store, step(1))
    acknowledge(store, "r", RULE, SAID)
    again = Acknowledgement("on reflection", None, 101.0)
    acknowledge(store, "r", RULE, again)
    assert evaluation(store, "r").findings[0].acknowledged == again
    remove_acknowledgement(store, "r", RULE)
    assert evaluation(store, "r").findings[0].acknowledged is None
    with pytest.raises(NoSuchFinding, match="nobody"):
        remove_acknowledgement(store, "r", RULE)


def test_only_a_finding_of_a_known_run_can_be_acknowledged(store: Store) -> None:
    judged(store, step(1))
    with pytest.raises(NoSuchFinding, match="found nothing"):
        acknowledge(store, "r", "loop.double_step", SAID)
    with pytest.raises(UnknownRun):
        acknowledge(store, "nobody", RULE, SAID)


# ---------------------------------------------------------------- over HTTP, and by hand


@pytest.fixture
def place(service: Service) -> str:
    """Where the acknowledgement of a judged run's finding lives."""
    service.post(batch("told", [step(1)]))
    assert eventually(60, lambda: bool(service.get("/runs/told").json()["steps"] == 1))
    return f"{service.url}/api/v1/runs/told/findings/{RULE}/acknowledgement"


def of_the_run(service: Service) -> dict[str, Any] | None:
    """What the verdict says of the acknowledgement."""
    said: dict[str, Any] | None = service.get("/runs/told/verdict").json()["findings"][0][
        "acknowledged"
    ]
    return said


def test_it_is_said_and_taken_back_over_http(service: Service, place: str) -> None:
    answer = httpx2.put(place, json={"note": " known <b>well</b> ", "by": "Ada"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["note"] == "known <b>well</b>"
    assert of_the_run(service) == answer.json()
    page = httpx2.get(f"{service.url}/runs/told").text
    assert "by Ada" in page and "known &lt;b&gt;well&lt;/b&gt;" in page
    assert httpx2.delete(place).status_code == 204
    assert of_the_run(service) is None
    assert httpx2.delete(place).status_code == 404


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({}, "body.note"),
        ({"note": "  "}, "body.note"),
        ({"note": "a\0b"}, "body.note"),
        ({"note": "known", "until": 1.0}, "body.until"),
        ({"note": "known", "by": ""}, "body.by"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    place: str, said: dict[str, Any], field: str
) -> None:
    answer = httpx2.put(place, json=said)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_a_run_or_finding_that_is_not_there_is_named(service: Service, place: str) -> None:
    for run, rule in (("nobody", RULE), ("told", "loop.double_step")):
        url = f"{service.url}/api/v1/runs/{run}/findings/{rule}/acknowledgement"
        answer = httpx2.put(url, json={"note": "known"})
        assert answer.status_code == 404 and run in answer.json()["detail"]


def test_where_tokens_are_asked_for_it_is_said_in_the_name_of_one(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as guarded:
        guarded.send(batch("r", [step(1)]), ADMIN)
        steps = "/api/v1/runs/r"
        assert eventually(60, lambda: bool(guarded.get(steps, ADMIN).json()["steps"] == 1))
        path = f"/api/v1/runs/r/findings/{RULE}/acknowledgement"
        answer = guarded.ask("PUT", path, guarded.token("admin"), json={"note": "known"})
        assert (answer.status_code, answer.json()["by"]) == (200, "someone")


def gradledger(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, on the service's database."""
    wide = {**os.environ, "COLUMNS": "200"}
    said = "acknowledge", *arguments, "--db", service.database
    return command.gradledger(*said, environment=wide)


def test_the_command_line_says_it_and_takes_it_back(service: Service, place: str) -> None:
    done = gradledger(service, "told", RULE, "--note", "known", "--until", "2999-01-01")
    assert done.returncode == 0, done.stderr
    said = of_the_run(service)
    assert said is not None and said["note"] == "known" and said["by"]
    done = gradledger(service, "a run", RULE, "--undo")  # its name
    assert done.returncode == 0, done.stderr
    assert of_the_run(service) is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nobody", RULE, "--note", "known"], "nobody"),
        (["told", "loop.double_step", "--note", "known"], "found nothing"),
        (["told", RULE], "--undo"),
        (["told", RULE, "--note", "known", "--undo"], "--undo"),
        (["told", RULE, "--note", " "], "--note"),
        (["told", RULE, "--note", "known", "--until", "2001-01-01"], "--until"),
    ],
)
def test_the_command_line_names_what_is_wrong(
    service: Service, place: str, arguments: list[str], why: str
) -> None:
    done = gradledger(service, *arguments)
    assert done.returncode == 2
    assert why in done.stderr and "Traceback" not in done.stderr
