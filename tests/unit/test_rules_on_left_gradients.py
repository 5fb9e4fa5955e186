"""Steps that begin with backwards of other lines, whose gradients were not zeroed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradledger.records import StepRecord
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.diagnosis import FOR_INPUTS, diagnose
from helpers.facts import facts, judged, record, term


def step(number: int, calls: Sequence[int | None]) -> StepFacts:
    """A step of means over 8 tokens, one for each call."""
    sent = record([term(8, 1 / 8) for _ in calls], number)
    for micro_batch, call in zip(sent.micro_batches, calls, strict=True):
        micro_batch.call = call
    return facts(sent)


def title(result: EvaluationResult) -> str:
    """That of the missing division."""
    return next(f.title for f in result.findings if f.rule == "reduction.missing_division")


def evaluation(*calls: Sequence[int | None]) -> EvaluationResult:
    """The evaluation of steps, each with the calls of its backwards."""
    return judged([step(number, each) for number, each in enumerate(calls, 1)])


def test_backwards_of_another_line_are_stated() -> None:
    assert (
        title(evaluation([1], [1], [1], [2, 2, 1])) == "2 backwards of another line add to a step"
    )
    assert (
        title(evaluation([1], [1], [1], [2, 2, 3, 1])) == "3 backwards of other lines add to a step"
    )


def test_a_loop_that_always_accumulates_lacks_the_division() -> None:
    assert title(evaluation(*[[1, 1, 2]] * 5)) == "The loss is not divided by K = 3"
    assert title(evaluation([1], [1], [1], [1, 1, 1])) == "The loss is not divided by K = 3"


def test_unknown_lines_and_few_windows_show_nothing() -> None:
    assert title(evaluation([1], [1], [1], [None, None, 1])) == "The loss is not divided by K = 3"
    assert title(evaluation([1], [2, 2, 1])) == "The loss is not divided by K = 3"


def test_the_summary_states_what_the_windows_show() -> None:
    (found,) = evaluation([1], [1], [1], [2, 2, 1]).findings
    assert found.summary.startswith(
        "Most windows before had 1 backward. This one begins with 2 of another line of the script, "
        "whose gradients were not zeroed before the usual one. The balance is 3 instead of 1: the "
        "gradient is a sum of 3 micro-batches."
    )
    assert found.evidence["of_other_lines"] == 2


def with_inputs(sent: StepRecord, kinds: Sequence[tuple[int | None, bool]], same: bool) -> None:
    """Set the lines of the backwards, and which of them give a gradient to an input."""
    for index, (micro_batch, kind) in enumerate(zip(sent.micro_batches, kinds, strict=True)):
        micro_batch.call, micro_batch.reaches_input = kind
        micro_batch.fingerprint = 0.5 if same else 0.5 + index


def of_inputs(kinds: Sequence[tuple[int | None, bool]], *, same: bool = True) -> str:
    """The title for a step whose backwards are of these lines, some with a gradient of an input."""
    sent = record([term(8, 1 / 8) for _ in kinds], 1)
    with_inputs(sent, kinds, same)
    return title(judged([facts(sent)]))


ATTACK, UNDIVIDED = "3 backwards for the gradient of an input add", "The loss is not divided by K"


@pytest.mark.parametrize("last", [(2, False), (1, False), (2, True), (None, False)])
def test_backwards_of_an_attack_are_stated(last: tuple[int | None, bool]) -> None:
    assert of_inputs([(1, True)] * 3 + [last]).startswith(ATTACK)


@pytest.mark.parametrize(
    "kinds",
    [
        [(1, True)] * 4,  # each is trained on, with a division that is missing
        [(1, False)] * 3 + [(2, True)],
        [(1, True), (1, False), (1, True), (1, False)],
        [(1, False), (1, True), (2, False), (2, False)],
    ],
)
def test_other_backwards_lack_the_division(kinds: Sequence[tuple[int, bool]]) -> None:
    assert of_inputs(kinds).startswith(UNDIVIDED)


def test_backwards_on_other_batches_are_of_no_attack() -> None:
    assert of_inputs([(1, True)] * 3 + [(2, False)], same=False).startswith(UNDIVIDED)


def reason(signs: Sequence[int], reaches: bool, heads: Sequence[int] = (1, 1)) -> str:
    """Why backwards of one batch are not judged, the last of which reaches no input."""
    terms = [term(8, sign / 8, head=h) for sign, h in zip(signs, heads, strict=True)]
    sent = record(terms, 1)
    with_inputs(sent, [(1, reaches)] * (len(signs) - 1) + [(2, False)], same=True)
    for micro_batch, head in zip(sent.micro_batches, heads, strict=True):
        micro_batch.task = head
    return diagnose(facts(sent), [])[0].reason


@pytest.mark.parametrize("signs", [(-1, 1), (1, 1)])
def test_gradients_of_an_attack_may_train_or_be_left_over(signs: Sequence[int]) -> None:
    """An attack that ascends, and one whose loss is a task of its own."""
    assert reason(signs, True, heads=(1, 2)) == FOR_INPUTS
    assert reason(signs, False, heads=(1, 2)) != FOR_INPUTS
