"""The post-mortem of a run with a bug from step 150 on, in each format."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gradledger.records import CheckpointRecord, Record
from gradledger_monitor.reports.incident import Incident, build_incident
from gradledger_monitor.reports.render import as_json, html, markdown
from gradledger_monitor.store.runs.queries import UnknownRun
from helpers.batches import EndRecord, EvalRecord, fair_step, step
from helpers.sending import evaluate_pending, new_store, send

BAD_FROM, STEPS = 150, 300
HOSTILE = "</style><script>alert(1)</script>"
HEADER: dict[str, Any] = {
    "environment": {"torch": "2.13", "device": "NVIDIA H200", "commit": "c0ffee", HOSTILE: HOSTILE},
    "config": {"learning_rate": 0.1, "note": HOSTILE},
    "name": f"run {HOSTILE}",
}


def course() -> list[Record]:
    """Fair until step 149, a checkpoint every 50 steps, and every kind of event."""
    records: list[Record] = []
    for number in range(1, STEPS + 1):
        record = fair_step(number) if number < BAD_FROM else step(number)
        record.time += 600.0 if number > 200 else 0.0
        record.lr = 0.1 if number <= 100 else 0.3
        for index, micro_batch in enumerate(record.micro_batches):
            micro_batch.number = 2 * (number if number <= 200 else number - 200) + index
            micro_batch.scale = 1_024.0 if number < 120 else 512.0
            micro_batch.loss = (micro_batch.loss or 0.0) * micro_batch.scale
            for term in micro_batch.terms:
                term.weight = (term.weight or 0.0) * micro_batch.scale
        record.post_factor = 1 / (record.micro_batches[0].scale or 1.0)
        records.append(record)
        if number % 50 == 0:
            records.append(CheckpointRecord(number, record.time, f"out/{number}"))
        if number % 100 == 0:
            records.append(EvalRecord(number, record.time, {"eval_loss": 2.0}))
    return records


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """The evaluated run and its post-mortem."""
    store = new_store(tmp_path_factory.mktemp("store") / "g.db")
    send(store, [*course(), EndRecord(2_000.0, [STEPS])], **HEADER)
    while evaluate_pending(store, 0):
        pass
    return build_incident(store, "r", now=5_000.0)


def test_it_names_the_first_bad_step_and_the_checkpoint_before_it(incident: Incident) -> None:
    assert incident.onset is not None and incident.last_good is not None
    assert (incident.onset.rule, incident.onset.first_step) == (
        "reduction.token_weights_unequal",
        BAD_FROM,
    )
    assert incident.last_good.step == 100
    assert incident.restart.endswith("saved after step 100 (out/100).")


def test_it_counts_what_was_spent_since(incident: Incident) -> None:
    cost = incident.cost
    assert cost is not None and cost.gpu_hours is not None
    assert (cost.steps, cost.tokens) == (STEPS - BAD_FROM + 1, 40 * (STEPS - BAD_FROM + 1))
    seconds = 150 + 600  # from the end of the first bad step; and that step itself
    assert cost.seconds == pytest.approx(seconds * 151 / 150)
    assert cost.gpu_hours == pytest.approx(cost.seconds / 3600)


def test_its_timeline_has_the_events(incident: Incident) -> None:
    events = {(event.step, event.kind): event.text for event in incident.events}
    assert events[120, "scale"] == "loss scale: 1,024 to 512"
    assert events[101, "rate"] == "learning rate: 0.1 to 0.3"
    assert events[201, "pause"].startswith("process restarted: 10 min 1 s")
    assert events[50, "checkpoint"] == "checkpoint saved out/50"
    assert events[200, "evaluation"] == "eval_loss 2"
    assert "reduction.token_weights_unequal" in events[BAD_FROM, "finding"]
    steps = [event.step for event in incident.events]
    assert steps == sorted(steps)


def test_it_has_the_token_weighted_loss(incident: Incident) -> None:
    first = incident.losses[0]
    assert first.step == BAD_FROM
    assert first.reported == pytest.approx(2.0)
    assert first.token_weighted == pytest.approx(2.0)


class _Page(HTMLParser):
    """Elements and what they fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.fetched += [f"{k}={v}" for k, v in attrs if k in ("src", "href", "srcset", "action")]


def test_the_page_fetches_nothing_and_runs_no_text_of_a_run(incident: Incident) -> None:
    text = html(incident)
    page = _Page()
    page.feed(text)
    assert page.fetched == []
    assert not {"script", "link", "iframe", "img", "object"} & set(page.elements)
    assert not re.search(r"url\(|@import", text)
    assert "default-src 'none'" in text
    assert len(text) < 500_000
    assert page.elements.count("figure") >= 8
    assert "Around the first bad step: " in text
    for expected in (
        "Decision tree",
        '<span class="small">No: reduction.token_weights_unequal',
        "Timeline",
        "Not measured",
        "out/100",
        "NVIDIA H200",
        "c0ffee",
    ):
        assert expected in text, expected


def test_markdown_has_the_same_and_escapes_markup(incident: Incident) -> None:
    text = markdown(incident)
    assert "first bad step: **150**" in text
    assert "out/100" in text
    assert "<script>" not in text


def test_json_is_for_other_tools(incident: Incident) -> None:
    document = json.loads(as_json(incident))
    assert (document["run"], document["verdict"], document["first_bad_step"]) == (
        "r",
        "broken",
        BAD_FROM,
    )
    assert document["last_good_checkpoint"] == {"step": 100, "time": 1_100.0, "path": "out/100"}
    assert document["cost_since"]["steps"] == 151
    assert document["environment"]["commit"] == "c0ffee"


def test_a_healthy_run_has_no_first_bad_step_and_an_unknown_one_no_report(tmp_path: Path) -> None:
    store = new_store(tmp_path / "g.db")
    send(store, [fair_step(n) for n in range(1, 5)])
    evaluate_pending(store, 0)
    healthy = build_incident(store, "r")
    assert (healthy.onset, healthy.cost) == (None, None)
    assert "No restart is needed" in html(healthy)
    with pytest.raises(UnknownRun):
        build_incident(store, "nobody")


def test_a_run_that_was_wrong_from_its_first_step_has_no_good_checkpoint(tmp_path: Path) -> None:
    store = new_store(tmp_path / "g.db")
    send(store, [step(1), step(2), CheckpointRecord(2, 1.0)])
    evaluate_pending(store, 0)
    incident = build_incident(store, "r")
    assert incident.restart.startswith("No checkpoint is good")
    text = html(incident)
    assert "Whole run: " in text
    assert "Around the first bad step: " not in text  # these steps are the whole run
