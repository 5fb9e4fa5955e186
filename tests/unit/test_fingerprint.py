"""The fingerprint of loss targets: whatever they hold, it is a number and raises nothing."""

from __future__ import annotations

import math

import pytest

from gradledger.capture.gradient_probe import are_consecutive, fingerprint, is_uninformative


def test_targets_that_differ_anywhere_differ_in_their_fingerprint() -> None:
    assert fingerprint([1.0, 2.0, 3.0]) == fingerprint([1.0, 2.0, 3.0])
    assert fingerprint([1.0, 2.0, 3.0]) != fingerprint([1.0, 3.0, 2.0])


def test_targets_with_infinities_of_both_signs_have_none() -> None:
    assert math.isnan(fingerprint([1.0, math.inf, -math.inf]))
    assert math.isnan(fingerprint([math.nan, 1.0]))


@pytest.mark.parametrize(
    ("targets", "uninformative", "consecutive"),
    [
        ([1.0, 1.0, 1.0], True, False),  # real, of a GAN
        ([0.0, 1.0, 2.0, 3.0], True, True),  # a contrastive loss
        ([0.0, 4.0, 8.0], True, True),  # sampled from a large one
        ([0.0, 2.0, 1.0], False, False),
        ([0.0, 1.0], False, False),  # too few to tell
    ],
)
def test_constant_and_consecutive_targets_do_not_depend_on_the_data(
    targets: list[float], uninformative: bool, consecutive: bool
) -> None:
    assert is_uninformative(targets) is uninformative
    assert are_consecutive(targets) is consecutive
