"""A step that breaks a computation is quarantined, and a rule that raises silences no other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest

from gradledger_monitor.evaluation.evaluated_step import EvaluatedStep, QuarantinedStep
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.model.findings import EvaluationResult, Outcome
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.run_history import RunHistory
from gradledger_monitor.model.step_facts import RunInfo, StepFacts
from gradledger_monitor.rules.catalogue import HISTORY_RULES, RULES
from gradledger_monitor.rules.rule import (
    OK,
    HistoryRule,
    Precondition,
    Rule,
    Window,
    deferred_finding,
)
from helpers.batches import fair_step, step
from helpers.facts import accepted

INFO = RunInfo("r", "n", optimizers=["SGD"])
REASON = "step 2 could not be evaluated: OverflowError: cannot convert float infinity to integer"


def overflow() -> None:
    raise OverflowError("cannot convert float infinity to integer")


class Breaks(str):
    """A number that passes for one of the wire, and breaks every computation with it."""

    error: Exception = OverflowError("cannot convert float infinity to integer")

    def __float__(self) -> float:
        raise self.error


class OutOfMemory(Breaks):
    error = MemoryError()


class Unprintable(Breaks):
    error = ValueError("\x1b[31m\0" + "x" * 10_000)


def arrived(number: int, fair: bool = True) -> ArrivedStep:
    record = fair_step(number) if fair else step(number)
    return ArrivedStep(0, number, 1.0, {0: accepted(record)})


def broken(number: int, kind: type[Breaks] = Breaks) -> ArrivedStep:
    """A step whose ranks' records cannot be merged."""
    arrived_step = arrived(number)
    arrived_step.records[0].micro_batches[0].terms[0].weight = kind("0.1")  # type: ignore[assignment]
    return arrived_step


def undiagnosed(number: int) -> ArrivedStep:
    """A step that can be merged, and whose balance cannot be explained."""
    arrived_step = arrived(number)
    for batch in arrived_step.records[0].micro_batches:
        term = batch.terms[0]
        term.weight = 3 / 40
        term.coefficient = Breaks("3.0")  # type: ignore[assignment]
    return arrived_step


def undrawn(number: int) -> ArrivedStep:
    """A step with one charted metric that cannot be computed and that no rule reads."""
    arrived_step = arrived(number)
    arrived_step.records[0].noise = [Breaks("1.0"), Breaks("1.0")]  # type: ignore[list-item]
    return arrived_step


@pytest.mark.parametrize("breaks", [broken, undiagnosed])
def test_a_step_that_breaks_a_computation_is_quarantined_and_the_run_continues(
    breaks: Callable[[int], ArrivedStep],
) -> None:
    state = RunState(INFO)
    results = [state.add_step(one) for one in (arrived(1), breaks(2), arrived(3, fair=False))]
    assert isinstance(results[0], StepFacts) and isinstance(results[2], StepFacts)
    assert results[1] == QuarantinedStep(0, 2, 1_002.0, 1, REASON)
    assert state.position.reached == {0: 3}
    row = EvaluatedStep.of(results[1])
    assert (row.step, row.ranks, row.metrics, row.failure) == (2, 1, {}, REASON)
    (finding,) = state.result().findings
    assert (finding.rule, finding.first_step) == ("reduction.token_weights_unequal", 3)


@pytest.mark.parametrize("breaks", [broken, undiagnosed])
def test_no_rule_reports_ok_for_a_run_with_a_missed_step(
    breaks: Callable[[int], ArrivedStep],
) -> None:
    state = RunState(INFO)
    for one in (arrived(1), breaks(2), arrived(3)):
        state.add_step(one)
    evaluation = state.result()
    of_steps = {rule.id() for rule in RULES}
    assert {evaluation.coverage[rule] for rule in of_steps} == {f"not_measured: {REASON}"}
    assert evaluation.verdict == "incomplete"
    assert {node.reason for node in evaluation.tree if node.status == "not_measured"} >= {REASON}


def test_a_quarantined_step_is_a_gap_for_rules() -> None:
    gaps: list[int] = []

    class Counts(Rule):
        def after_gap(self) -> None:
            gaps.append(1)

        def evaluate(self, window: Window) -> Outcome:
            return OK

    state = RunState(INFO, rules=[Counts], history_rules=[])
    for one in (arrived(1), broken(2), arrived(3), arrived(4)):
        state.add_step(one)
    assert len(gaps) == 1


def test_a_restored_state_reports_the_same() -> None:
    steps = [arrived(1), broken(2), arrived(3), arrived(4, fair=False), arrived(5)]
    whole, first = RunState(INFO), RunState(INFO)
    for one in steps:
        whole.add_step(one)
    for one in steps[:3]:
        first.add_step(one)
    second = RunState(INFO)
    second.restore(first.snapshot())
    for one in steps[3:]:
        second.add_step(one)
    assert asdict(second.result()) == asdict(whole.result())
    assert "could not be evaluated" in repr(second.result().coverage)


def test_running_out_of_memory_is_no_property_of_a_step() -> None:
    state = RunState(INFO)
    state.add_step(arrived(1))
    with pytest.raises(MemoryError):
        state.add_step(broken(2, OutOfMemory))


def test_metrics_that_cannot_be_computed_do_not_change_the_result() -> None:
    right, state = RunState(INFO), RunState(INFO)
    right.add_step(arrived(2))
    result = state.add_step(undrawn(2))
    assert isinstance(result, StepFacts)
    row = EvaluatedStep.of(result)
    assert (row.metrics, row.failure) == ({}, REASON)
    assert asdict(state.result()) == asdict(right.result())


def test_the_error_is_stored_in_bounds_and_printable() -> None:
    result = RunState(INFO).add_step(broken(2, Unprintable))
    assert isinstance(result, QuarantinedStep)
    assert len(result.reason) < 600 and result.reason.isprintable()
    assert "\\x1b[31m\\x00xxx" in result.reason


# ---------------------------------------------------------------- one rule that raises


class Calm(Rule):
    def evaluate(self, window: Window) -> Outcome:
        return OK


class RaisesInEvaluate(Calm):
    def evaluate(self, window: Window) -> Outcome:
        overflow()
        return OK


def _raises(window: Window) -> Outcome | None:
    overflow()
    return None


class RaisesInPrecondition(Calm):
    precondition = Precondition("raises", _raises)


class RaisesAfterAGap(Calm):
    def after_gap(self) -> None:
        overflow()


class RaisesInInactivity(Calm):
    def evaluate_inactivity(self, inactivity: Inactivity) -> Outcome | None:
        overflow()
        return None


class RaisesInTexts(Calm):
    def evaluate(self, window: Window) -> Outcome:
        return deferred_finding(overflow)  # type: ignore[arg-type]


class RaisesInTimeout(Calm):
    def inactivity_timeout(self) -> float | None:
        overflow()
        return None


@pytest.mark.parametrize(
    "broken",
    [RaisesInEvaluate, RaisesInPrecondition, RaisesAfterAGap, RaisesInInactivity, RaisesInTexts],
)
def test_a_rule_that_raises_is_not_measured_and_silences_no_other(broken: type[Rule]) -> None:
    name(broken, "test.broken")
    evaluation = evaluate_with([*RULES[:4], broken, *RULES[4:]], HISTORY_RULES)
    alone = evaluate_with(RULES, HISTORY_RULES)
    why = "not_measured: the rule failed: OverflowError: cannot convert float infinity to integer"
    assert evaluation.coverage.pop("test.broken") == why
    assert evaluation.coverage == alone.coverage
    assert evaluation.findings == alone.findings


def test_a_rule_that_raises_while_it_is_asked_how_long_to_wait_silences_no_other() -> None:
    state = RunState(INFO, rules=[RaisesInTimeout, Patient], history_rules=[])
    state.miss(0, 1, "")
    assert state.inactivity_timeout(0) == 7.0


class Patient(Calm):
    def inactivity_timeout(self) -> float | None:
        return 7.0


def test_a_rule_on_the_course_that_raises_silences_no_other() -> None:
    class Broken(HistoryRule):
        @classmethod
        def id(cls) -> str:
            return "test.course"

        def evaluate_history(self, course: RunHistory) -> Iterator[tuple[int, Outcome]]:
            yield 1, OK
            overflow()

    evaluation = evaluate_with(RULES, [Broken, *HISTORY_RULES])
    assert evaluation.coverage.pop("test.course").startswith("not_measured: the rule failed")
    assert evaluation.coverage == evaluate_with(RULES, HISTORY_RULES).coverage


def name(rule: type[Rule], called: str) -> None:
    rule.id = classmethod(lambda _: called)  # type: ignore[method-assign, assignment]


def evaluate_with(
    rules: list[type[Rule]] | tuple[type[Rule], ...],
    course: list[type[HistoryRule]] | tuple[type[HistoryRule], ...],
) -> EvaluationResult:
    """The result of three steps, a gap and an inactivity."""
    state = RunState(INFO, rules=rules, history_rules=course)
    for number in (1, 2, 5):
        state.add_step(arrived(number, fair=number < 5))
    state.add_inactivity(0, 5, Inactivity(100.0, [], None))
    return state.result()
