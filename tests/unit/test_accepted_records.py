"""Whatever the wire accepts can be evaluated, drawn and written as JSON, without the quarantine.

The guard that quarantines a step would hide a fault in the arithmetic, so these tests assert that
it was not needed. ``test_quarantine.py`` tests the guard itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.evaluation.evaluated_step import EvaluatedStep
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.ranks.topology import topology
from gradledger_monitor.model.step_facts import RunInfo, StepFacts
from gradledger_monitor.reports.verdict_json import verdict_json
from gradledger_monitor.rules.catalogue import HISTORY_RULES, RULES
from gradledger_monitor.rules.objective_verdicts import objective_verdicts
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.rules.rule import Window
from gradledger_web import charts, evidence_svg, rank_table, step_table, window_timeline
from gradledger_web.chart_svg import Curve, Frame, plot
from helpers.examples import examples, share
from helpers.wire_values import (
    FLOATS,
    accepted,
    accepted_runs,
    accepted_steps,
    evaluations,
    numbered,
    plausible_steps,
    window,
)

# Thresholds that a few steps reach, so that rules with a history report findings here.
EARLY = {
    **{"needed": 2, "span": 3, "windows": 2, "growing": 2, "early": 2, "sustained": 1},
    **{"steps": 1, "stays": 1, "recent": 2, "in_a_row": 1, "many": 1, "least": 1},
}
CHOICES = RuleOverrides(
    thresholds={
        rule.id(): {name: EARLY[name] for name in rule.parameters() if name in EARLY}
        for rule in (*RULES, *HISTORY_RULES)
    }
    | {"clip.always_engaged": {"span": 3, "share": 0.0}}
)
LONGEST_INT = 2**63 - 1
SHOWN = set[str]()  # most runs share most of their windows and series: each is shown once

Step = dict[int, schema.StepRecord]
ANY_STEP = st.one_of(plausible_steps(), plausible_steps(), plausible_steps(), accepted_steps)
ANY_STEPS = st.lists(st.tuples(ANY_STEP, ANY_STEP), min_size=1, max_size=6)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def info_of(run: schema.RunRecord, world_size: int) -> RunInfo:
    """The run as the service describes it to rules."""
    return RunInfo(
        run.run,
        run.name,
        world_size,
        run.optimizers,
        run.contract,
        run.declared_scale,
        run.environment,
        run.config,
    )


def check(info: RunInfo, steps: Sequence[Step], evaluated: dict[str, dict[int, float]]) -> None:
    """Evaluate the steps in order, and look at them as pages and the API do."""
    state = RunState(info, CHOICES)
    state.set_eval_metrics(evaluated)
    rows = []
    for number, records in enumerate(steps, 1):
        seen = state.add_step(ArrivedStep(0, number, 1_000.0 + number, records))
        if seen is None:
            continue  # a rank skipped it
        row = EvaluatedStep.of(seen)
        assert row.failure is None
        assert isinstance(seen, StepFacts)
        rows.append(row)
        if is_new((info, number, records)):
            check_page(seen)
    state.add_inactivity(0, len(steps), Inactivity(100.0, [0], 3))
    check_judgement(state.result())
    assert 0 <= state.position.tokens <= LONGEST_INT
    check_charts(rows)


def check_page(facts: StepFacts) -> None:
    """The ledger of a step, as its page shows it."""
    verdicts = objective_verdicts(Window(facts))
    assert bool(verdicts) == (facts.ledger is not None)
    for verdict in verdicts:
        rows = step_table.rows(facts, verdict)
        assert all(row.deviation and row.bar.width >= 0 for row in rows)
        for cells in (step_table.grid(rows) or {}).values():
            assert all(cell.shade for cell in cells)
        strict(charts.shares_figure(step_table.worst_rows(rows)))
        assert 0 <= verdict.ledger.misallocation < math.inf
    assert step_table.uncounted_rows(facts, verdicts) is not None
    assert step_table.summarize(facts, verdicts).sentence
    shown = rank_table.table(topology(facts.run.world_size, facts.records), facts.step, [])
    assert {row.rank for row in shown.rows} >= facts.records.keys()
    assert window_timeline.calls_of(facts.record)


def check_judgement(evaluation: EvaluationResult) -> None:
    """No rule failed, and every form in which the judgement leaves the service can be written."""
    assert not [f"{r}: {why}" for r, why in evaluation.coverage.items() if "the rule failed" in why]
    assert not [why for why in evaluation.coverage.values() if "could not be evaluated" in why]
    document = verdict_json("r", 1, 1, evaluation)
    json.loads(msgspec.json.encode(document), parse_constant=no_constant)
    strict(json_safe(document))
    for finding in evaluation.findings:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(finding.evidence)) is not None


def check_charts(rows: Sequence[EvaluatedStep]) -> None:
    """The series of the run, as the API and the pictures of findings and reports draw them."""
    steps = [row.step for row in rows]
    for figure in rows[0].metrics if rows else ():
        values = [row.metrics[figure] for row in rows]
        json.loads(msgspec.json.encode(values), parse_constant=no_constant)
        if is_new((figure, values)):
            draw(figure, steps, values)


def is_new(shown: object) -> bool:
    """Whether it is seen for the first time."""
    text = repr(shown)
    new = text not in SHOWN
    SHOWN.add(text)
    return new


def draw(figure: str, steps: list[int], values: list[float | None]) -> None:
    if figure in evidence_svg.LABELS:
        evidence_svg.line_chart(figure, steps, values, steps[0], steps[-1])
    for log in (False, True):
        plot(Frame(figure, log), steps, [Curve(figure, "#000", values)])


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


def strict(document: Any) -> None:
    """The document as JSON, which has no NaN."""
    json.dumps(document, allow_nan=False)


def by_rank(windows: Sequence[tuple[schema.StepRecord, ...]], ranks: int) -> list[Step]:
    return [
        {rank: numbered(record, number) for rank, record in enumerate(each[:ranks])}
        for number, each in enumerate(windows, 1)
    ]


def losses(records: Sequence[schema.EvalRecord]) -> dict[str, dict[int, float]]:
    """Evaluations as the evaluator reads them, some of them under names that rules look for."""
    found: dict[str, dict[int, float]] = {}
    for place, record in enumerate(records):
        for name, value in record.values.items():
            for known in (name, "eval_loss"):
                found.setdefault(known, {})[place + 1] = float(value)
    return found


@settings(max_examples=examples(120), deadline=None, suppress_health_check=SLOW)
@given(accepted_runs, st.integers(1, 2), ANY_STEPS, st.lists(evaluations, max_size=5))
def test_whatever_the_wire_accepts_can_be_evaluated(
    run: schema.RunRecord,
    ranks: int,
    windows: list[tuple[schema.StepRecord, schema.StepRecord]],
    evaluated: list[schema.EvalRecord],
) -> None:
    check(info_of(run, ranks), by_rank(windows, ranks), losses(evaluated))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
@given(st.integers(1, 2), ANY_STEPS)
def test_the_same_records_give_the_same_result(
    ranks: int, windows: list[tuple[schema.StepRecord, schema.StepRecord]]
) -> None:
    info, answers = RunInfo("r", "n", ranks, ["SGD"]), []
    for _ in range(2):
        state = RunState(info, CHOICES)
        rows = [
            asdict(EvaluatedStep.of(seen))
            for number, records in enumerate(by_rank(windows, ranks), 1)
            if (seen := state.add_step(ArrivedStep(0, number, 1.0, records))) is not None
        ]
        answers.append(repr((rows, asdict(state.result()))))
    assert answers[0] == answers[1]


# ---------------------------------------------------------------- every number in every place


def numbers_in(fields: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a window has a float."""
    if isinstance(fields, float):
        return [path]
    if not isinstance(fields, dict | list):
        return []
    inside = fields.items() if isinstance(fields, dict) else enumerate(fields)
    return [found for key, value in inside for found in numbers_in(value, (*path, key))]


def put(fields: Any, path: Sequence[Any], value: Any) -> None:
    for key in path[:-1]:
        fields = fields[key]
    fields[path[-1]] = value


PLACES = numbers_in(window(1))
RUNS = {
    "sgd": RunInfo("r", "n", 1, ["SGD"]),
    "declared": RunInfo("r", "n", 1, ["AdamW"], declared_scale=1e308),
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_an_extreme_number_in_one_place_can_be_evaluated(place: tuple[Any, ...]) -> None:
    values = [*FLOATS, "NaN", "Infinity", "-Infinity"]
    for value in share(values, PLACES.index(place)):
        windows = []
        for number in range(1, 5):
            fields = window(number, sync="none", wrapper=None)
            if number in (2, 3) and (place not in UNSIGNED or str(value)[0] not in "-NI"):
                put(fields, place, value)
            windows.append(accepted(fields))
        for info in RUNS.values():
            check(info, by_rank([(record,) for record in windows], 1), {})


@pytest.mark.parametrize("divisor", FLOATS)
def test_any_divisor_of_the_ranks_can_be_evaluated(divisor: float) -> None:
    """Also where the first rank states nothing else of its wrapper."""
    windows = [
        (
            accepted(window(number, sync="unknown", wrapper=None, divisors=[divisor])),
            accepted(window(number)),
        )
        for number in range(1, 5)
    ]
    check(RunInfo("r", "n", 2, ["SGD"]), by_rank(windows, 2), {})


UNSIGNED = {path for path in PLACES if path == ("time",) or path[-1] == "backward_ms"}


@pytest.mark.parametrize("weight", [1e-310, 5e-324, 1e-308, -1e-310, -0.0, 0.0])
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_the_smallest_weights_have_a_right_ledger(weight: float, micro_batches: int) -> None:
    """The record of the report: 1 / B is infinite where B is a denormal number."""
    info = RunInfo("r", "n", 1, ["SGD"])
    state = RunState(info)
    for number in (1, 2, 3):
        fields = window(number, micro_batches, sync="none", wrapper=None, post_factor=1.0)
        fields["events"] = []
        for batch in fields["micro_batches"]:
            batch["scale"] = None
            batch["terms"][0] |= dict.fromkeys(("weight", "weight_min", "weight_max"), weight)
        seen = state.add_step(ArrivedStep(0, number, 1.0, {0: accepted(fields)}))
        assert isinstance(seen, StepFacts)
        if weight:
            assert seen.ledger is not None
            tokens = sum(range(30, 30 + 10 * micro_batches, 10))
            assert seen.ledger.balance == pytest.approx(abs(weight) * tokens, rel=1e-9)
            assert seen.ledger.misallocation == pytest.approx(0, abs=1e-9)
        else:
            assert seen.ledger is None
    check_judgement(state.result())
    assert state.position.reached == {0: 3}


def test_a_window_as_long_as_the_wire_allows_can_be_evaluated() -> None:
    fields = window(1, sync="none", wrapper=None)
    batch = fields["micro_batches"][0]
    fields["micro_batches"] = [batch | {"fresh": at == 0} for at in range(4_096)]
    fields["micro_batches"][0] = batch | {"terms": batch["terms"] * 4_096}
    for term in fields["micro_batches"][0]["terms"]:
        term["tokens"] = term["size"] = term["rows"] = 2**53
    fields["group_norms"] = fields["lrs"] = [1e308] * 65_536
    fields["samples"] = {"after_backward": [1e308] * 1_024, "at_step": [5e-324] * 1_024}
    check(RunInfo("r", "n", 1, ["SGD"]), [{0: accepted(fields)}], {})


@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=8))
@example([1e308, -1e308])
@example([5e-324, 1e-310])
@example([1e300, 1.0000000000000002e300])
def test_any_values_can_be_drawn(values: list[float]) -> None:
    steps = list(range(1, len(values) + 1))
    assert evidence_svg.line_chart("norm", steps, values, 1, len(values)) is None or values
    for log in (False, True):
        plot(Frame("norm", log), steps, [Curve("norm", "#000", values, values, values)])
