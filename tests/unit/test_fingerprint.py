"""The fingerprint of loss targets: whatever they hold, it is a number and raises nothing."""

from __future__ import annotations

import math

from gradledger.capture.gradient_probe import fingerprint


def test_targets_that_differ_anywhere_differ_in_their_fingerprint() -> None:
    assert fingerprint([1.0, 2.0, 3.0]) == fingerprint([1.0, 2.0, 3.0])
    assert fingerprint([1.0, 2.0, 3.0]) != fingerprint([1.0, 3.0, 2.0])


def test_targets_with_infinities_of_both_signs_have_none() -> None:
    assert math.isnan(fingerprint([1.0, math.inf, -math.inf]))
    assert math.isnan(fingerprint([math.nan, 1.0]))
