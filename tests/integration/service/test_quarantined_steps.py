"""Extreme records on both databases, and steps that cannot be evaluated: stored, shown, counted."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from gradledger.delivery.encoding import encode
from gradledger.records import RunRecord
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.gate.private_service import private_service
from gradledger_monitor.ingest import decode
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance import diagnosis
from gradledger_monitor.rules.balance.patterns import Diagnosis
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.runs.replay import replay
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Span
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.telemetry.metrics import Metrics
from gradledger_monitor.workers.evaluator import (
    EvaluationFailed,
    EvaluationPass,
    Evaluator,
    evaluate_all,
)
from helpers import http
from helpers.batches import EndRecord, batch, fair_step
from helpers.sending import Clock, judged, send
from helpers.wire_values import FLOATS, window

BROKEN = 3
REASON = "step 3 could not be evaluated: OverflowError: a computation that breaks"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Break the evaluation of step 3 until the fixture is undone."""
    right = diagnosis.diagnose

    def diagnose(facts: StepFacts, *past: Any) -> list[Diagnosis]:
        if facts.step == BROKEN:
            raise OverflowError("a computation that breaks")
        return right(facts, *past)

    monkeypatch.setattr(diagnosis, "diagnose", diagnose)
    return monkeypatch


def test_a_step_that_cannot_be_evaluated_is_stored_with_the_reason(
    store: Store, broken: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passes: list[EvaluationPass] = []
    send(store, map(fair_step, range(1, 6)))
    with caplog.at_level(logging.ERROR):
        Evaluator(store, listener=passes.append).evaluate_pending()
    assert judged(store) == 5
    expected = queries.QuarantineEntry(0, BROKEN, REASON)
    assert queries.quarantined_steps(store, "r") == queries.QuarantinedSteps(1, [expected])
    assert queries.step_failure(store, "r", 0, BROKEN) == REASON
    assert queries.step_failure(store, "r", 0, 4) is None
    evaluation = queries.evaluation(store, "r")
    assert evaluation.verdict == "incomplete"
    assert f"not_measured: {REASON}" in evaluation.coverage.values()
    drawn = curves.curves(store, "r")
    assert drawn["step"] == [1, 2, 3, 4, 5]
    assert drawn["norm"] == [1.0, 1.0, None, 1.0, 1.0]
    assert [each.quarantined for each in passes] == [1]
    metrics = Metrics(store, lambda: 0)
    metrics.count_evaluation(passes[0].steps, passes[0].seconds, passes[0].quarantined)
    assert b"gradledger_quarantined_steps_total 1.0" in metrics.text()
    assert REASON in caplog.text


def test_a_restart_and_a_replay_report_the_same(store: Store, broken: pytest.MonkeyPatch) -> None:
    for number in range(1, 5):
        send(store, [fair_step(number)])
        Evaluator(store).evaluate_pending()  # each like a separate process
    send(store, map(fair_step, range(1, 5)), run="at-once")
    Evaluator(store).evaluate_pending()
    answers = [queries.evaluation(store, run) for run in ("r", "at-once")]
    assert answers[0] == answers[1]
    assert replay(store, "r", RuleOverrides()).coverage == answers[0].coverage
    assert queries.quarantined_steps(store, "r") == queries.quarantined_steps(store, "at-once")


def test_a_step_that_can_be_evaluated_later_leaves_the_quarantine(
    store: Store, broken: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    send(store, map(fair_step, (1, 3, 4)), clock.time)
    clock.time += 31
    evaluator.evaluate_pending()
    assert queries.quarantined_steps(store, "r").count == 1
    broken.undo()  # as another version of the service would
    send(store, [fair_step(2)], clock.time)  # late: the run is evaluated again
    Evaluator(store, rank_timeout=30, now=clock).evaluate_pending()
    assert queries.quarantined_steps(store, "r") == queries.QuarantinedSteps(0, [])
    assert queries.evaluation(store, "r").verdict == "balanced"
    assert curves.curves(store, "r")["norm"] == [1.0] * 4


def test_of_many_quarantined_steps_the_first_are_listed_and_all_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "diagnose", lambda *_: 1 / 0)
    send(store, map(fair_step, range(1, 13)))
    Evaluator(store).evaluate_pending()
    listed = queries.quarantined_steps(store, "r", most=3)
    assert (listed.count, [one.step for one in listed.steps]) == (12, [1, 2, 3])


# ---------------------------------------------------------------- pages, API and metrics


def test_pages_api_and_metrics_show_the_step_and_the_reason(broken: pytest.MonkeyPatch) -> None:
    with private_service(RuleOverrides()) as service, ExitStack() as pages:
        body = batch("r", map(fair_step, range(1, 6)))
        headers = {"Content-Type": "application/x-ndjson"}
        http.post(f"{service.url}/api/v1/records", content=body, headers=headers)
        service.evaluate_all()
        get = pages.enter_context(http.client(base_url=service.url)).get
        document = get("/api/v1/runs/r/quarantined").json()
        assert document == {"count": 1, "steps": [{"optimizer": 0, "step": 3, "reason": REASON}]}
        assert get(f"/api/v1/runs/r/steps/0/{BROKEN}").json()["failure"] == REASON
        assert get("/api/v1/runs/r/steps/0/4").json()["failure"] is None
        coverage = get("/api/v1/runs/r/verdict").json()["coverage"]
        assert coverage["reduction.missing_division"] == f"not_measured: {REASON}"
        run_page, step_page = get("/runs/r").text, get(f"/runs/r/steps/0/{BROKEN}").text
        assert f"S{REASON[1:]}" in run_page and "1 step could not be evaluated" in run_page
        assert f"S{REASON[1:]}." in step_page
        assert "gradledger_quarantined_steps_total" in get("/metrics").text
        assert get("/api/v1/runs/nobody/quarantined").status_code == 404


def test_a_step_that_cannot_even_be_merged_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepFacts, "_norm", lambda _: 1 / 0)
    with private_service(RuleOverrides()) as service, ExitStack() as pages:
        store_batch(service.store, decode.read(batch("r", [fair_step(1)])), 1.0)
        service.evaluate_all()
        get = pages.enter_context(http.client(base_url=service.url)).get
        why = "tep 1 could not be evaluated: ZeroDivisionError: division by zero"
        page = get("/runs/r/steps/0/1")
        assert page.status_code == 200 and f"S{why}." in page.text
        document = get("/api/v1/runs/r/steps/0/1").json()
        assert document["failure"] == f"s{why}"
        assert (document["figures"], document["ledger"]) == ({}, None)
        assert list(document["records"]) == ["0"]


def test_a_run_that_cannot_be_evaluated_at_all_ends_the_evaluation(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(state: RunState) -> bytes:
        raise TypeError("a state that cannot be saved")

    monkeypatch.setattr(RunState, "snapshot", broken)
    send(store, [*map(fair_step, range(1, 6)), EndRecord(1.0, [5])])
    with caplog.at_level(logging.ERROR), pytest.raises(EvaluationFailed, match="evaluation of r "):
        evaluate_all(store, RuleOverrides())
    assert "a state that cannot be saved" in caplog.text
    evaluate_all(store, RuleOverrides(), runs={"another"})  # an import, say: that one did not fail


# ---------------------------------------------------------------- extreme numbers


def lines(steps: Sequence[dict[str, Any]], **run: Any) -> bytes:
    header = encode(RunRecord("r", name="a run", optimizers=["S\0GD"], **run))
    return header + b"".join(msgspec.json.encode(each) + b"\n" for each in steps)


def extreme(number: int, value: Any) -> dict[str, Any]:
    """A window in which every figure is made of one number."""
    fields = window(number, sync="none", wrapper=None, norm=value, lr=value, noise=[value, value])
    for micro_batch in fields["micro_batches"]:
        micro_batch["loss"] = micro_batch["scale"] = value
        micro_batch["terms"][0] |= {"weight": value, "class_weight": value, "kind": "a\0#b"}
        micro_batch["terms"][0] |= {"weight_min": value, "weight_max": value, "tokens": 2**53}
    for event in fields["events"]:
        event |= {"norm": value, "limit": value}
    return fields


def test_extreme_numbers_are_evaluated_stored_and_drawn(store: Store) -> None:
    values = [*FLOATS, "NaN", "Infinity", "-Infinity"]
    steps = [extreme(n, values[n % len(values)]) for n in range(1, 201)]
    evals = [
        {"type": "eval", "step": n, "time": 1e308, "values": {"loss": values[n % len(values)]}}
        for n in range(1, 201)
    ]
    store_batch(store, decode.read(lines([*steps, *evals], started=1e308)), 1.0)
    Evaluator(store).evaluate_pending()
    assert judged(store) == 200
    assert queries.quarantined_steps(store, "r").count == 0
    evaluation = queries.evaluation(store, "r")
    assert not [why for why in evaluation.coverage.values() if "the rule failed" in why]
    for points in (100, 1_000):
        drawn = curves.curves(store, "r", Span(0), points=points)
        json.loads(msgspec.json.encode(drawn), parse_constant=lambda name: pytest.fail(name))
        assert drawn["step"][-1] == 200
    for points in (2, 100):
        assert curves.eval_curves(store, "r", points=points)["loss"]["step"]


@pytest.mark.parametrize("value", [1e-310, 1e160, 1e308, 5e-324, -1e308])
def test_the_mean_of_a_point_is_right_for_extreme_numbers(store: Store, value: float) -> None:
    """Postgres raises an error where a sum, or the square in its ``avg``, is beyond a float."""
    steps = [window(n, sync="none", wrapper=None, norm=value) for n in range(1, 201)]
    store_batch(store, decode.read(lines(steps)), 1.0)
    Evaluator(store).evaluate_pending()
    bounded = 0.0 if abs(value) < 1e-300 else max(min(value, 1e300), -1e300)
    for points in (10, 100):
        drawn = curves.curves(store, "r", points=points)
        assert drawn["norm"] == pytest.approx([bounded] * len(drawn["step"]))
        assert {*drawn["norm_low"], *drawn["norm_high"]} == {value}


def test_pages_of_a_run_of_extreme_numbers_can_be_shown() -> None:
    with private_service(RuleOverrides()) as service, ExitStack() as pages:
        values = [*FLOATS, "NaN", "Infinity", "-Infinity"]
        steps = [extreme(n, value) for n, value in enumerate(values, 1)]
        store_batch(service.store, decode.read(lines(steps, started=1e308)), 1.0)
        large = [window(n, sync="none", wrapper=None, norm=1e308) for n in range(1, 51)]
        store_batch(
            service.store, decode.read(lines(large).replace(b'"run":"r"', b'"run":"l"')), 1.0
        )
        service.evaluate_all()
        get = pages.enter_context(http.client(base_url=service.url)).get
        paths = [
            "/",
            "/compare?run=r&run=l",
            "/runs/r",
            "/runs/r/postmortem",
            "/api/v1/runs/r/series",
        ]
        paths += ["/api/v1/runs", "/api/v1/runs/r/verdict", "/api/v1/runs/r/findings"]
        for number in range(1, len(values) + 1):
            paths += [f"/runs/r/steps/0/{number}", f"/api/v1/runs/r/steps/0/{number}"]
        answers = {path: get(path) for path in paths}
        assert {path: a.status_code for path, a in answers.items() if a.status_code != 200} == {}
        for path, answer in answers.items():
            if path.startswith("/api/"):
                json.loads(answer.text, parse_constant=lambda name: pytest.fail(name))
