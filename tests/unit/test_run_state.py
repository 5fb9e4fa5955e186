"""A snapshot lets another process continue exactly where the first one stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.delivery.encoding import encode
from gradledger_monitor.evaluation.evaluator_version import stamp
from gradledger_monitor.evaluation.result import strongest_outcomes
from gradledger_monitor.evaluation.rule_outcomes import RuleOutcomes
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import Doubt
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.rules.rule import OK
from helpers.batches import fair_step, step
from helpers.examples import examples
from helpers.strategies import step_records

RUN = RunInfo("r", "a run", 1, ["SGD"], environment={"torch": "2.13"})


def new_state() -> RunState:
    """The state of a run before its first step."""
    return RunState(RUN)


def arrived(record: Any, number: int) -> ArrivedStep:
    """A record as the evaluator reads it, as the step of that number."""
    decoded = schema.decoder.decode(encode(record))
    assert isinstance(decoded, schema.StepRecord)
    decoded.step, decoded.optimizer = number, decoded.optimizer % 2
    return ArrivedStep(decoded.optimizer, number, 1_000.0 + number, {0: decoded})


def add(state: RunState, steps: list[ArrivedStep]) -> None:
    """Evaluate some steps."""
    for arrived_step in steps:
        state.add_step(arrived_step)


def restored(state: RunState) -> RunState:
    """Another state, restored from a snapshot of this one."""
    other = new_state()
    other.restore(state.snapshot())
    return other


@settings(max_examples=examples(60))
@given(st.lists(step_records, min_size=2, max_size=12), st.data())
def test_a_restored_state_gives_the_same_result(records: list[Any], data: st.DataObject) -> None:
    steps = [arrived(record, number) for number, record in enumerate(records, 1)]
    cut = data.draw(st.integers(1, len(steps) - 1))
    whole, first = new_state(), new_state()
    add(whole, steps)
    add(first, steps[:cut])
    second = restored(first)
    add(second, steps[cut:])
    # as text, because NaN equals nothing
    assert repr(second.result()) == repr(whole.result())
    assert repr(second.position) == repr(whole.position)


def test_a_doubt_is_restored_as_one() -> None:
    first, second = RuleOutcomes("loss.nonfinite", 0), RuleOutcomes("loss.nonfinite", 0)
    first.fold(1, OK)
    first.fold(2, Doubt("not_measured", "not in the last 5 recorded windows"))
    second.restore_outcomes(first.outcomes_state())
    assert isinstance(second.strongest, Doubt)


@pytest.mark.parametrize("doubted", [0, 1])
def test_a_doubt_is_not_settled_by_what_is_ok_with_another_optimizer(doubted: int) -> None:
    outcomes = [RuleOutcomes("ddp.replica_drift", optimizer) for optimizer in (0, 1)]
    for each in outcomes:
        each.fold(1, Doubt("not_measured", "why") if each.optimizer == doubted else OK)
    coverage = strongest_outcomes(outcomes, replace(RUN, optimizers=["SGD", "Adam"]))
    assert coverage["ddp.replica_drift"].status == "not_measured"


def test_restoring_again_and_again_gives_the_same_result() -> None:
    steps = [arrived(step(n) if n % 7 else fair_step(n), n) for n in range(1, 400)]
    whole, part = new_state(), new_state()
    add(whole, steps)
    for begin in range(0, len(steps), 37):
        part = restored(part)
        add(part, steps[begin : begin + 37])
    assert part.result() == whole.result()


def test_inactivity_is_evaluated_once_and_between_the_right_steps() -> None:
    steps = [arrived(fair_step(n), n) for n in range(1, 31)]
    inactivity = {(0, 20): Inactivity(90.0, [0], None)}
    live, again = new_state(), new_state()
    add(live, steps[:20])
    live.stored_inactivity = inactivity
    live.add_stored_inactivity(0)
    live.add_stored_inactivity(0)
    live = restored(live)
    live.stored_inactivity = again.stored_inactivity = inactivity
    add(live, steps[20:])
    add(again, steps)
    (finding,) = live.result().findings
    assert (finding.rule, finding.first_step, finding.steps) == ("run.stalled", 20, 1)
    assert again.result() == live.result()


def test_other_overrides_have_another_stamp() -> None:
    assert stamp(RuleOverrides(), RUN) == stamp(RuleOverrides(), RUN)
    assert stamp(RuleOverrides(), RUN) != stamp(RuleOverrides(off=("norm.*",)), RUN)
    assert stamp(RuleOverrides(), RUN) != stamp(RuleOverrides(), replace(RUN, world_size=2))
