"""The reduction of a function that hides its graph, from what it returns for unequal counts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from gradledger.observers.losses_out_of_sight.inference import (
    Evidence,
    Law,
    Sample,
    Size,
    Window,
    token_weight,
)


def errors_and_value(weight: float, probabilities: list[float]) -> tuple[list[float], float]:
    value = -weight * sum(map(math.log, probabilities))
    return [weight * (1 - p) for p in probabilities], value


@pytest.mark.parametrize("weight", [1.0, 1 / 7, 1e-4, 65536.0])
@pytest.mark.parametrize("guesses", [(), (123.0, 0.5)])
def test_the_weight_of_a_cross_entropy_follows_from_its_value(
    weight: float, guesses: tuple[float, ...]
) -> None:
    draw = random.Random(1)
    probabilities = [draw.uniform(1e-5, 0.95) for _ in range(200)]
    errors, value = errors_and_value(weight, probabilities)
    assert token_weight(errors, value, guesses) == pytest.approx(weight, rel=1e-6)


def test_a_guess_that_fits_is_returned() -> None:
    errors, value = errors_and_value(0.25, [0.1, 0.5, 0.9])
    assert token_weight(errors, value, (1.0, 0.25)) == 0.25


def test_a_model_that_makes_no_errors_shows_no_weight() -> None:
    errors, value = errors_and_value(0.25, [0.9999, 0.99995])
    assert token_weight(errors, value, ()) is None
    assert token_weight([], 0.0, ()) is None


def values(
    divisor: Law, noise: float, sizes: list[Size], of_gradients: Law | None = None
) -> Evidence:
    """Losses that fall, of tokens whose mean varies by ``noise``, and so do their gradients."""
    draw, evidence = random.Random(2), Evidence()

    def total(law: Law, size: Size, step: int) -> float:
        mean = 5.0 * 0.99**step * math.exp(draw.gauss(0, noise))
        return mean * size.tokens / size.divisor(law)

    for step, size in enumerate(sizes):
        value, mass = total(divisor, size, step), total(of_gradients or divisor, size, step)
        evidence.add(Sample(size, value, mass, 0.25))
    return evidence


def window_of(samples: list[Sample]) -> Window:
    window = Window()
    window.samples.extend(samples)
    return window


RAGGED = [Size(n, 96, 4) for n in (12, 80, 33, 57, 91, 20, 64, 8, 45, 72, 15, 88, 26, 60, 39, 9)]
PADDED = [Size(n, n + 30 + 7 * (n % 3), 1 + n % 4) for n, _, _ in RAGGED]


@pytest.mark.parametrize("sizes", [RAGGED, PADDED])
@pytest.mark.parametrize("divisor", ["mean", "sum", "rows", "first"])
def test_the_law_that_made_the_values_is_found(divisor: Law, sizes: list[Size]) -> None:
    law = values(divisor, 0.05, sizes).law()
    assert law is not None
    same = {"rows", "first", "sum"} if sizes is RAGGED else {divisor}  # constant divisors
    assert law in (same if divisor != "mean" else {"mean"})


@pytest.mark.parametrize(
    ("noise", "sizes"),
    [
        (0.05, RAGGED[:8]),  # too few
        (1.5, RAGGED),  # the losses vary as much as the counts
        (0.05, [Size(64, 96, 4)] * 40),  # all of one size
        (0.05, [Size(64 + i % 3, 96, 4) for i in range(40)]),  # nearly
    ],
)
def test_without_enough_evidence_there_is_no_law(noise: float, sizes: list[Size]) -> None:
    assert values("mean", noise, sizes).law() is None


@pytest.mark.parametrize("sizes", [RAGGED, PADDED])
def test_tokens_without_a_gradient_that_count_in_a_mean_give_no_law(sizes: list[Size]) -> None:
    """Where a loss is clipped, its value is a mean over all, and its gradients are of the rest."""
    assert values("mean", 0.05, sizes, of_gradients="rows").law() is None


@pytest.mark.parametrize(
    ("factor", "differ"),
    [
        (lambda size: 0.25, False),
        (lambda size: size.tokens / 900, False),
        (lambda size: 0.25 / size.tokens, False),
        (lambda size: size.rows / size.tokens / 4, False),
        (lambda size: (size.tokens + size.tokens % 7) / 900, True),
    ],
)
def test_the_factors_of_the_loop_follow_a_count_or_do_not(
    factor: Callable[[Size], float], differ: bool
) -> None:
    window = [Sample(size, 1.0, 1.0, factor(size)) for size in PADDED]
    assert window_of(window).counts_are_known != differ
    unmasked = [each._replace(size=each.size._replace(rows=each.size.tokens)) for each in window]
    assert window_of(unmasked).counts_are_known


def test_one_token_without_a_gradient_makes_the_counts_of_a_window_unknown() -> None:
    counted = (8, 14, 9, 3)
    window = [Sample(Size(n - (n == 14), 16, 16), 1.0, 1.0, n / sum(counted)) for n in counted]
    assert not window_of(window).counts_are_known


@pytest.mark.parametrize("half", [False, True])
def test_factors_rounded_to_half_precision_follow_a_count(half: bool) -> None:
    """The largest rounding error of bf16 is 2**-8."""
    rounded = [n / 900 * (1 + (-1) ** i * 2**-9) for i, (n, _, _) in enumerate(RAGGED)]
    window = [Sample(s, 1.0, 1.0, u, half) for s, u in zip(RAGGED, rounded, strict=True)]
    assert window_of(window).counts_are_known == half


@pytest.mark.parametrize("mass", [math.inf, math.nan, 0.0])
def test_a_gradient_that_overflows_is_no_evidence(mass: float) -> None:
    """As in a step that GradScaler skips."""
    evidence = values("mean", 0.05, RAGGED)
    expected, count = evidence.law(), len(evidence.samples)
    for size in RAGGED:
        evidence.add(Sample(size, 1.0, mass, 0.25))
    assert (evidence.law(), len(evidence.samples)) == (expected, count) == ("mean", 16)


def test_a_window_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its micro-batches asks."""
    window = window_of([Sample(size, 1.0, 1.0, size.tokens / 900) for size in RAGGED])
    assert window.counts_are_known
    monkeypatch.setattr(window, "samples", None)
    assert window.counts_are_known


def test_weights_that_obey_one_law_prove_it_and_others_do_not() -> None:
    constant, mean, other = Evidence(), Evidence(), Evidence()
    for tokens in (8, 3, 14, 5):
        constant.add_exact(tokens, 1 / 30)
        mean.add_exact(tokens, 0.5 / tokens)
        other.add_exact(tokens, 1 / (tokens + 0.1 * tokens**1.5))
    assert constant.proved
    assert mean.proved
    assert not other.proved


def test_a_divisor_that_changes_from_window_to_window_is_proved() -> None:
    evidence = Evidence()
    for window in ((8, 3, 14, 5), (2, 9, 7, 4)):
        for tokens in window:
            evidence.add_exact(tokens, 1 / sum(window))
    assert evidence.proved


def test_equal_counts_prove_only_a_plain_mean_or_sum() -> None:
    plain, scaled = Evidence(), Evidence()
    for _ in range(8):
        plain.add_exact(16, 1 / 16)
        scaled.add_exact(16, 0.5 / 16)
    assert plain.proved
    assert not scaled.proved
