"""The fingerprint of loss targets: whatever they hold, it is a number and raises nothing."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest

from gradledger.capture.gradient_probe import (
    are_consecutive,
    fingerprint,
    fingerprint_of_labels,
    is_uninformative,
)


def test_targets_that_differ_anywhere_differ_in_their_fingerprint() -> None:
    for print_of in (fingerprint, fingerprint_of_labels):
        assert print_of([1.0, 2.0, 3.0]) == print_of([1.0, 2.0, 3.0])
        assert print_of([1.0, 2.0, 3.0]) != print_of([1.0, 3.0, 2.0])


def test_no_two_batches_of_a_few_labels_have_one_fingerprint() -> None:
    classes, lengths = (0.0, 1.0, 2.0), range(1, 9)
    batches = [[*b] for n in lengths for b in itertools.product(classes, repeat=n)]
    assert len(set(map(fingerprint_of_labels, batches))) == len(batches) > 9_000


def test_the_fingerprint_of_labels_is_the_same_in_every_process() -> None:
    name = "fingerprint_of_labels"
    code = f"from gradledger.capture.gradient_probe import {name}; print({name}([1, 0.5]))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(other.stdout) == fingerprint_of_labels([1.0, 0.5])
    assert fingerprint_of_labels([0.0]) == fingerprint_of_labels([-0.0])


def test_targets_with_infinities_of_both_signs_have_none() -> None:
    for print_of in (fingerprint, fingerprint_of_labels):
        assert math.isnan(print_of([1.0, math.inf, -math.inf]))
        assert math.isnan(print_of([math.nan, 1.0]))


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
