"""Divisors that one window leaves open, and that others show, or that two numbers may be."""

from __future__ import annotations

import math

import pytest

from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.diagnosis import diagnose
from gradledger_monitor.rules.balance.divisors import MAY_DIVIDE_TWICE, MAY_UNDO_K
from gradledger_monitor.rules.balance.patterns import Closed
from helpers.facts import accused, facts, judged, record, term


def means(balance: float, micro_batches: int, number: int = 1, factor: float = 1.0) -> StepFacts:
    """Equal means of 8 samples each, and what multiplies their gradients after backward."""
    weight = balance / micro_batches / 8
    return facts(record([term(8, weight)] * micro_batches, number, post_factor=factor))


def test_a_clip_by_hand_that_engages_at_times_hides_no_missing_division() -> None:
    steps = [means(4.0, 4, 1, 0.3), means(4.0, 4, 2, 0.7), means(4.0, 4, 3), means(4.0, 4, 4)]
    assert accused(judged(steps)) == {"reduction.missing_division": 3}


def test_what_the_loop_multiplies_in_each_window_remains_in_the_balance() -> None:
    windows = [Closed(4, 2.0, 32.0, "pending", scaled_to=1.0, scaled_by=0.5)]
    assert diagnose(means(4.0, 4), windows)[0].pattern == "missing"
    larger = [Closed(4, 8.0, 32.0, "pending", scaled_to=1.0, scaled_by=2.0)]  # no clip
    assert diagnose(means(4.0, 4), larger)[0].pattern != "missing"
    assert diagnose(means(4.0, 4), [Closed(4, 2.0, 32.0, "pending")])[0].pattern != "missing"


def test_a_shorter_last_window_shows_the_divisor_of_longer_ones() -> None:
    steps = [means(2.0, 4, 1), means(2.0, 4, 2), means(1.0, 2, 3)]
    assert accused(judged(steps))["reduction.partial_window"] == 1


def test_a_known_weight_of_longer_windows_is_no_divisor() -> None:
    weighted = [Closed(4, 2.0, 32.0, "coefficient")] * 2
    assert diagnose(means(1.0, 2), weighted)[0].pattern == "partial"  # this one is divided by 4


def of_constant(constant: float, k: int) -> tuple[str, str]:
    """The pattern and the reason of means that are divided by K, and multiplied by a constant."""
    each = term(8, constant / k / 8, divisors=[float(k)], coefficient=constant)
    (diagnosis,) = diagnose(facts(record([each] * k)), [])
    return diagnosis.pattern, diagnosis.reason


@pytest.mark.parametrize("k", [4, 6, 8, 16])
def test_a_constant_of_one_over_k_may_divide_again(k: int) -> None:
    assert of_constant(1 / k, k) == ("unmeasured", MAY_DIVIDE_TWICE)
    assert of_constant(float(k), k) == ("unmeasured", MAY_UNDO_K)


@pytest.mark.parametrize(("constant", "k"), [(0.5, 2), (0.1, 10), (0.25, 8), (0.3, 4)])
def test_another_constant_is_a_weight(constant: float, k: int) -> None:
    assert of_constant(constant, k)[0] == "coefficient"


def summed(tokens: int) -> EvaluationResult:
    """Cross entropies that are added up, divided by 4, in windows of 4."""
    steps = [
        facts(record([term(tokens, 1 / 4, "sum", divisors=[4.0])] * 4, number))
        for number in (1, 2, 3)
    ]
    return judged(steps)


def test_a_sum_over_as_many_samples_as_micro_batches_has_either_divisor() -> None:
    (found,) = summed(4).findings
    assert found.title == "The summed loss is divided by 4 alone"
    assert "if it counts these, the division by K is missing" in found.summary
    (found,) = summed(5).findings
    assert found.title == "The summed loss is not divided by the number of elements"


def rows(element_weight: float, weight: float) -> EvaluationResult:
    """A bare sum over 4 rows of 4 entries, which K = 4 micro-batches repeat."""
    shape = {"size": 16, "rows": 4, "positions": 4, "elements": 4}
    each = term(16, weight, "none", **shape, element_weight=element_weight, divisors=[4.0])
    each.kind, each.of = "SumBackward0", "PowBackward0"
    return judged([facts(record([each] * 4, number)) for number in (1, 2, 3)])


def test_rows_that_are_means_of_their_entries_weigh_what_their_elements_do() -> None:
    """A row that adds up its entries weighs what they do."""
    assert rows(element_weight=1 / 4, weight=1 / 16).verdict == "incomplete"
    assert rows(element_weight=1 / 16, weight=1 / 16).verdict == "balanced"


EARLY = "loop.step_every_microbatch"
STATED = {"Accelerator": "in use", "gradient_accumulation_steps": "4"}


def of_accelerate(
    k: int, environment: dict[str, str] = STATED, batches: tuple[int, ...] = ()
) -> set[str]:
    """What is reported of windows of k means, each of which is divided by 4."""
    each, steps = term(8, 1 / 4 / 8, divisors=[4.0], kind="MseLossBackward0"), []
    for n, drawn in enumerate(batches or (k + 1, k, k, k - 1), start=1):
        steps.append(facts(record([each] * k, n, batches=drawn), environment=environment))
    return {rule for rule in accused(judged(steps)) if rule in ("reduction.partial_window", EARLY)}


def test_windows_that_accelerate_divides_by_another_number_are_reported() -> None:
    assert of_accelerate(2) == {"reduction.partial_window"}
    assert of_accelerate(32) == {"reduction.partial_window"}
    assert of_accelerate(1) == {EARLY}
    assert of_accelerate(4) == set()


@pytest.mark.parametrize(("k", "counted"), [(3, False), (2, True), (8, True)])
def test_the_fix_of_a_loader_that_ends_early_is_no_count(k: int, counted: bool) -> None:
    each = term(8, 1 / 4 / 8, divisors=[4.0], kind="MseLossBackward0")
    steps = [facts(record([each] * k, n, batches=k), environment=STATED) for n in (1, 2, 3)]
    (fix,) = {f.fix for f in judged(steps).findings if f.rule == "reduction.partial_window"}
    assert "sync_with_dataloader=False" in fix
    assert ("enter it once" in fix) == counted


def test_several_backwards_of_one_batch_or_none_are_no_window_of_another_length() -> None:
    assert of_accelerate(8, batches=(5, 4, 4, 3)) == set()  # two losses of each batch
    assert of_accelerate(2, batches=(5, 4, 4, 3)) == set()  # of every second batch
    assert of_accelerate(1, batches=(5, 4, 4, 3)) == set()


@pytest.mark.parametrize("without", STATED)
def test_what_accelerate_does_not_state_is_no_divisor_of_a_window(without: str) -> None:
    environment = {key: value for key, value in STATED.items() if key != without}
    assert [of_accelerate(k, environment) for k in (1, 2, 32)] == [set()] * 3


def written(*lengths: int, divisors: tuple[float, ...] = (5.0,)) -> list[StepFacts]:
    """Windows of so many means, each divided by these numbers alone."""
    weight = 1 / math.prod(divisors)
    windows = [[term(8, weight / 8, divisors=list(divisors))] * k for k in lengths]
    return [facts(record(window, number)) for number, window in enumerate(windows, 1)]


@pytest.mark.parametrize("lengths", [(2, 3, 1, 3, 3), (4, 4, 1, 2, 1), (1, 3, 1, 3)])
def test_shorter_windows_of_several_lengths_show_the_written_divisor(
    lengths: tuple[int, ...],
) -> None:
    findings = judged(written(*lengths)).findings
    (finding,) = (f for f in findings if f.rule == "reduction.partial_window")
    assert finding.severity == "warning" and "divided by 5" in finding.title
    assert "reduction.wrong_denominator" not in {f.rule for f in findings}


def test_windows_of_one_length_may_have_a_weight() -> None:
    (finding,) = judged(written(2, 2, 2, 2)).findings
    assert (finding.rule, finding.severity) == ("reduction.balance_off", "info")


def test_a_written_square_of_k_has_two_causes() -> None:
    (finding,) = judged(written(2, 2, 2, divisors=(4.0,))).findings
    assert finding.rule == "reduction.double_division" and finding.severity == "warning"
    assert "the optimizer steps too early" in finding.summary
    assert "2 * 2, K divides once too often" in finding.summary


def test_two_divisions_by_k_have_one_cause() -> None:
    (finding,) = judged(written(2, 2, 2, divisors=(2.0, 2.0))).findings
    assert finding.title == "The gradient is divided by K = 2 once too often"
