"""The report of a run begins with what changed where a symptom began; each fix is headed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradledger_monitor.ingest import decode
from gradledger_monitor.model.findings import FOR_THIS_LINE, GENERIC, fix_title
from gradledger_monitor.reports.incident import Incident, build_incident
from gradledger_monitor.reports.render import as_json, html, markdown
from gradledger_monitor.store.steps.ingest import store_batch
from helpers.sending import evaluate_pending, new_store
from museum.record import recorded

RECORDS = recorded(Path(__file__).parents[2] / "fixtures" / "records")
CORRUPTED = (
    "At step 81, the batch has a loss of 6,273 over 64 elements, where those before had 0.6229."
)


def incident_of(name: str, folder: Path) -> Incident:
    """The post-mortem of a recorded script."""
    store = new_store(folder / "g.db")
    (lines,) = RECORDS[name]
    store_batch(store, decode.read(lines), 10_000.0)
    while evaluate_pending(store, 0):
        pass
    return build_incident(store, json.loads(lines.splitlines()[0])["run"], now=20_000.0)


def test_every_format_begins_with_what_changed(tmp_path: Path) -> None:
    incident = incident_of("norm/corrupted_batch", tmp_path)
    assert incident.changed == CORRUPTED
    assert json.loads(as_json(incident))["changed"] == CORRUPTED
    for page, heading in (
        (markdown(incident), "**What changed**"),
        (html(incident), "What changed"),
    ):
        assert (
            page.index(heading) < page.index("6,273 over 64 elements") < page.index("Decision tree")
        )


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (
            "loss/rate_in_percent",
            "At step 32, the learning rate had gone from 0.1 (step 30) to 50.",
        ),
        ("norm/rate_beyond_the_stable_limit", "Nothing that is recorded changed at step 9:"),
        ("loop/head_replaced_too_late", ""),  # no symptom
    ],
)
def test_it_is_that_of_the_symptom(name: str, changed: str, tmp_path: Path) -> None:
    report = incident_of(name, tmp_path).changed
    assert report.startswith(changed) and bool(report) == bool(changed)


@pytest.mark.parametrize(
    ("steps_later", "changed"), [(1, CORRUPTED), (10, "Nothing that is recorded changed")]
)
def test_a_symptom_that_led_to_the_first_bad_step_may_show_more_than_that(
    steps_later: int, changed: str, tmp_path: Path
) -> None:
    incident = incident_of("norm/corrupted_batch", tmp_path)
    (spike,) = incident.evaluation.findings
    first = spike.last_step + steps_later
    evidence = {"changed": {"step": first, "compared": ["learning rate"]}}
    onset = replace(spike, rule="loss.nonfinite", first_step=first, evidence=evidence)
    assert replace(incident, onset=onset).changed.startswith(changed)


def test_a_diff_of_the_users_lines_is_headed_so_and_all_else_as_generic() -> None:
    assert fix_title("--- a/train.py\n+++ b/train.py\n") == FOR_THIS_LINE
    assert fix_title("loss = loss / K") == GENERIC
