"""The gradient noise scale, from gradients whose true mean and covariance are chosen."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from gradledger.capture.gradient_probe import AccumulatedSample, added, noise
from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_monitor.model.step_facts import RunInfo, StepFacts, merge
from helpers.batches import fair_step
from helpers.facts import accepted

COORDINATES, SIGNAL, DEVIATION = 40, 0.5, 6.0  # of each: its mean, and one token's deviation
TOKENS, K, STEPS = 25, 4, 400
TRACE_TRUE = COORDINATES * DEVIATION**2
SIGNAL_TRUE = COORDINATES * SIGNAL**2


def ends(rank_gradients: list[list[float]], mean: list[float] | None) -> list[AccumulatedSample]:
    """What one rank's accumulated gradients were after each backward; ``mean`` over the ranks."""
    sums = [
        [sum(column) / K for column in zip(*rank_gradients[: n + 1], strict=True)] for n in range(K)
    ]
    samples = [
        AccumulatedSample(values, fresh=n == 0, combined=False) for n, values in enumerate(sums)
    ]
    return samples if mean is None else [*samples[:-1], AccumulatedSample(mean, False, True)]


def a_step(chance: random.Random, ranks: int, number: int) -> StepFacts:
    """One step of ``ranks`` ranks with K micro-batches of TOKENS tokens."""
    of_micro_batch = DEVIATION / TOKENS**0.5
    drawn = [
        [[chance.gauss(SIGNAL, of_micro_batch) for _ in range(COORDINATES)] for _ in range(K)]
        for _ in range(ranks)
    ]
    columns = zip(*(gradient for each in drawn for gradient in each), strict=True)
    mean = [fmean(column) for column in columns] if ranks > 1 else None
    records = {}
    for rank, each in enumerate(drawn):
        record = fair_step(number, tokens=(TOKENS,) * K)
        samples = ends(each, mean)
        record.noise = noise(samples, added(samples))
        record.sync = "averaged" if ranks > 1 else "none"
        records[rank] = accepted(record)
    return merge(RunInfo("r", "a run", ranks, ["SGD"]), 0, number, records)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_noise_scale_is_the_one_that_the_gradients_were_drawn_with(ranks: int) -> None:
    chance = random.Random(ranks)
    figures = [chart_metrics(a_step(chance, ranks, number)) for number in range(1, STEPS + 1)]
    trace = fmean(f["noise_trace"] or 0.0 for f in figures)
    signal = fmean(f["noise_signal"] or 0.0 for f in figures)
    assert trace == pytest.approx(TRACE_TRUE, rel=0.05)
    assert signal == pytest.approx(SIGNAL_TRUE, rel=0.1)
