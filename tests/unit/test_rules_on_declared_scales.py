"""A run that declares a balance other than 1: findings compare with the declared one.

``watch(scale=8)`` declares that a step sums eight sequences on purpose.
"""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.records import Samples, StepRecord, Term
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

SCALE = 8.0


def finding_of(rule: str, *windows: list[StepRecord]) -> Finding:
    """The finding of a rule in steps, each of which is a list of the ranks' records."""
    steps = [facts(*ranks, declared_scale=SCALE) for ranks in windows]
    evaluation = judged(steps)
    return next(f for f in evaluation.findings if f.rule == rule)


def alike(divisor: float, k: int = 4, reduction: str = "mean", tokens: int = 50) -> list[Term]:
    """Equal micro-batches whose losses are times the scale, over a divisor."""
    return [term(tokens, SCALE / (tokens * divisor), reduction) for _ in range(k)]


@pytest.mark.parametrize(("divisor", "size", "by"), [(6, "small", 0.333333), (2 / 3, "large", 3.0)])
def test_a_world_size_that_is_missing_is_reported_in_the_right_direction(
    divisor: float, size: str, by: float
) -> None:
    ranks = [record(alike(divisor, 2), sync="averaged") for _ in range(3)]
    finding = finding_of("reduction.world_size", ranks)
    assert finding.title == f"The gradient is 3 times too {size}: a factor of the world size"
    assert ("one division too many" if by < 1 else "one multiplication too many") in finding.summary
    assert f"effective learning rate is {by:.4g} times" in finding.summary
    assert finding.evidence["balance"] == pytest.approx(SCALE * by, abs=1e-5)
    assert finding.evidence["factor"] == by


def test_a_constant_that_is_the_world_size_may_be_declared_with_the_scale() -> None:
    terms = [term(50, SCALE * 2 / (50 * 3), coefficient=2.0)] * 3
    finding = finding_of("reduction.world_size", [record(terms, sync="averaged")] * 2)
    assert "declare scale=16." in finding.summary
    assert (finding.evidence["balance"], finding.evidence["factor"]) == (16.0, 2.0)


def test_what_a_loop_that_combines_ranks_should_multiply_by_depends_on_the_scale() -> None:
    left = ([1.0, -2.0, 0.5], [3.0, 1.0, -0.25], [0.5, 0.5, 0.5])
    fields: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 3}
    summed = [sum(column) for column in zip(*left, strict=True)]
    terms = [term(10, SCALE / 10)]
    ranks = [record(terms, samples=Samples(mine, summed), **fields) for mine in left]
    finding = finding_of("reduction.world_size", ranks)
    assert "by 1; the right factor for this loss is 0.3333" in finding.summary


def test_a_share_of_what_is_declared_is_called_so() -> None:
    finding = finding_of("reduction.double_division", [record(alike(16))])
    assert finding.summary.startswith("The balance is 2 = 1/4 of the declared 8, which matches one")
    windows = [[record(alike(4, k), number)] for number, k in enumerate((4, 4, 2), 1)]
    finding = finding_of("reduction.partial_window", *windows)
    assert finding.summary.startswith(
        "The last balanced window held 4 micro-batches. This one holds 2, and its balance is "
        "4 = 2/4 of the declared 8. With SGD, the effective learning rate is 0.5 times"
    )


def test_steps_after_every_micro_batch_are_counted_against_the_scale() -> None:
    single = [[record(alike(16, 1), number)] for number in (1, 2)]
    finding = finding_of("loop.step_every_microbatch", *single)
    assert finding.title == "The loss is divided by 16, and the optimizer steps after 1 micro-batch"
    assert "its balance is 1/16 of the declared 8: the loss" in finding.summary


def test_a_constant_balance_is_reported_beside_the_one_that_is_declared() -> None:
    constant = [[record(alike(4 / 0.7), number)] for number in (1, 2)]
    finding = finding_of("reduction.balance_off", *constant)
    assert finding.title == "The balance is 5.6, not 8"
    assert finding.summary.endswith("effective learning rate is 0.7 times the configured one.")
    assert (finding.evidence["balance"], finding.evidence["factor"]) == (5.6, 0.7)


def test_a_sum_is_too_large_by_what_is_left_of_it_without_the_scale() -> None:
    finding = finding_of(
        "reduction.unnormalised_sum", [record([term(50, 1.0, "sum", undivided=True)] * 4)]
    )
    assert "The balance is 200 instead of 8," in finding.summary
    assert "effective learning rate is 25 times" in finding.summary
    assert (finding.evidence["balance"], finding.evidence["factor"]) == (200.0, 25.0)


def test_the_divisor_is_reported_without_the_scale() -> None:
    windows = [[record(alike(divisor), n)] for n, divisor in enumerate((4 / 0.8, 4 / 0.5), 1)]
    finding = finding_of("reduction.wrong_denominator", *windows)
    assert finding.evidence["divisor"] == pytest.approx(200 / 0.5)
    assert finding.evidence["tokens"] == 200
