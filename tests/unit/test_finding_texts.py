"""The texts of findings: a changed text shows in a review, and an accidental change fails here.

`pytest tests/unit/test_finding_texts.py --snapshot-update` writes them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from gradledger.records import Event, Samples, Scaler, StepRecord
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import facts, judged, record, term
from helpers.finding_text import finding_text

SQUARES = "MseLossBackward0"
WINDOWS = ([40, 60, 100, 56], [30, 90, 20, 80], [64, 16, 48, 96])


def weighed(
    weight: Callable[[int, list[int]], float], reduction: str = "mean", **run: Any
) -> list[StepFacts]:
    """Three steps of one rank, each token's weight by its micro-batch and window."""
    return [
        facts(record([term(n, weight(n, window), reduction) for n in window], number), **run)
        for number, window in enumerate(WINDOWS, 1)
    ]


def partial() -> list[StepFacts]:
    """Full windows of four, and a last one of two that is divided by four all the same."""
    windows = ([50] * 4, [50] * 4, [50] * 2)
    return [
        facts(record([term(n, 1 / (4 * n)) for n in window], number))
        for number, window in enumerate(windows, 1)
    ]


def single(divisor: int) -> list[StepFacts]:
    """Steps after every micro-batch."""
    return [facts(record([term(n, 1 / (n * divisor))], i)) for i, n in enumerate((40, 70, 20), 1)]


def on_ranks(
    divide: Callable[[list[int]], float], synced: bool = True, **more: Any
) -> list[StepFacts]:
    """Two ranks under DDP, one micro-batch each."""
    sync: Any = "averaged" if synced else "none"

    def one(tokens: int, all_: list[int], number: int) -> StepRecord:
        terms = [term(tokens, 1 / divide([tokens, *all_]), "sum", **more)]
        step_record = record(terms, number, sync=sync, wrapper="ddp")
        step_record.micro_batches[0].wrapper = "sync" if synced else "no_sync"
        step_record.micro_batches[0].collectives = int(synced)
        step_record.norm = step_record.norm if synced else tokens / 100
        return step_record

    return [
        facts(*(one(tokens, list(ranks), number) for tokens in ranks))
        for number, ranks in enumerate([(40, 60), (70, 30), (20, 90)], 1)
    ]


def everywhere_unequal() -> list[StepFacts]:
    """Each rank's mean of its micro-batches' means, both of other sizes."""
    ranks = ((10, 30), (50, 90))
    step_records = [
        record([term(n, 1 / (2 * n)) for n in tokens], sync="averaged", wrapper="ddp")
        for tokens in ranks
    ]
    for step_record in step_records:
        first, last = step_record.micro_batches
        first.wrapper, first.collectives = "no_sync", 0
        last.wrapper, last.collectives = "sync", 1
    return [facts(*step_records)]


def by_hand(factor: float, divide: float) -> list[StepFacts]:
    """Two ranks whose loop combines the gradients itself: their sum, multiplied by a factor."""
    left, applied = ([1.0, -2.0, 0.5], [3.0, 1.0, -0.25]), [4.0, -1.0, 0.25]
    fields: Any = {"post_factor": None, "sync": "unknown", "collectives_after": 3}
    samples = [Samples(before, [factor * v for v in applied]) for before in left]

    def step(number: int) -> StepFacts:
        terms = [term(10, 1 / divide)]
        return facts(*(record(terms, number, samples=each, **fields) for each in samples))

    return [step(1), step(2)]


def padded() -> list[StepFacts]:
    """Each micro-batch is divided by its padded size, and by K."""
    return [
        facts(record([term(n, 1 / (128 * 4), "sum", size=128) for n in window], number))
        for number, window in enumerate(WINDOWS, 1)
    ]


def first_tokens_counted() -> list[StepFacts]:
    """A causal language model whose divisor counts the first token of each sequence, too."""
    window = [term(11, 1 / (12 * 4), "sum", size=12) for _ in range(4)]
    return [facts(record(window, number)) for number in (1, 2, 3)]


def with_a_term_undivided() -> list[StepFacts]:
    """A right loss, to which every micro-batch adds a penalty that is not divided by K."""
    penalty = replace(term(8, 0.01 / 8, undivided=True, coefficient=0.01), kind=SQUARES)
    return [facts(record([[term(50, 1 / 200), penalty] for _ in range(4)]))]


def with_a_term_divided_twice() -> list[StepFacts]:
    """A right loss, and a penalty that K divides once more."""
    penalty = replace(term(8, 0.1 / 128, divisors=[4.0, 4.0], coefficient=0.1), kind=SQUARES)
    return [facts(record([[term(50, 1 / 200, divisors=[4.0]), penalty] for _ in range(4)]))]


def with_a_term_of_one_weight() -> list[StepFacts]:
    """A right loss in windows of 5 and of 15, and a penalty of one weight in both."""
    penalty = replace(term(8, 0.02 / 8, undivided=True, coefficient=0.02), kind=SQUARES)
    return [
        facts(record([[term(50, 1 / (50 * k)), penalty] for _ in range(k)], number))
        for number, k in enumerate((5, 15), 1)
    ]


def means_by_class_weights() -> list[StepFacts]:
    """Micro-batches of different counts, each the mean by its own class weights."""
    sent = ((30, 24.0), (50, 61.5))
    return [facts(record([term(n, 0.5 / n, class_weight=weights) for n, weights in sent]))]


def by_the_class_weights_of_another_window() -> list[StepFacts]:
    """A sum with class weights that is divided by one number in all windows."""
    return [
        facts(record([term(50, 1 / 60, "sum", class_weight=float(n))] * 2, number))
        for number, n in enumerate((30, 27, 33), 1)
    ]


def squares(*sizes: int) -> list[StepFacts]:
    """Summed squared errors, with their number in each step."""
    step_records = [
        replace(term(n, 1.0, "sum", rows=None, positions=None), kind=SQUARES) for n in sizes
    ]
    return [facts(record([each], number)) for number, each in enumerate(step_records, 1)]


def scaled(**changes: Any) -> list[StepFacts]:
    """Three steps with a GradScaler."""
    steps = []
    for number, window in enumerate(WINDOWS, 1):
        step_record = record(
            [term(n, 1024.0 / sum(window), "sum") for n in window], number, **changes
        )
        step_record.scaler = Scaler(1, 1024.0, number)
        for micro_batch in step_record.micro_batches:
            micro_batch.scale, micro_batch.loss = 1024.0, 1024.0
        steps.append(facts(step_record))
    return steps


def leaked() -> list[StepFacts]:
    """Windows that begin with the gradients of the one before."""
    steps = []
    for number, window in enumerate(WINDOWS, 1):
        step_record = record([term(n, 1 / sum(window), "sum") for n in window], number)
        step_record.micro_batches[0].fresh = number == 1
        steps.append(facts(step_record))
    return steps


STEP, UPDATE = Event("scaler_step", 4), Event("update", 4)
CLIP_SCALED = Event("clip_norm", 4, limit=1.0, norm=900.0, factor=1.0)

CASES: dict[str, list[StepFacts]] = {
    "mean of means": weighed(lambda n, window: 1 / (4 * n)),
    "missing division": weighed(lambda n, window: 1 / n),
    "missing division under Adam": weighed(lambda n, window: 1 / n, optimizers=["AdamW"]),
    "double division": weighed(lambda n, window: 1 / (4 * sum(window)), "sum"),
    "never divided": weighed(lambda n, window: 1.0, "sum"),
    "another window's count": weighed(lambda n, window: 1 / sum(WINDOWS[0]), "sum"),
    "balance of three": weighed(lambda n, window: 3 / sum(window), "sum"),
    "mean of means in the Trainer": weighed(
        lambda n, window: 1 / (4 * n), config={"framework": "transformers"}
    ),
    "a short last window": partial(),
    "a step after every micro-batch": single(4),
    "a term that is added undivided": with_a_term_undivided(),
    "a term that is added undivided in windows of two sizes": with_a_term_of_one_weight(),
    "a term that K divides twice": with_a_term_divided_twice(),
    "squares summed over as many each time": squares(64, 64, 64),
    "squares summed over more each time": squares(32, 64, 128),
    "each rank by its own count": on_ranks(lambda n: n[0]),
    "averaged again over ranks": on_ranks(lambda n: sum(n[1:])),
    "multiplied by the world size": on_ranks(lambda n: sum(n[1:]) / 4),
    "the world size, or a weight of two": on_ranks(lambda n: sum(n[1:]) / 4, coefficient=2.0),
    "summed over ranks by hand": by_hand(1.0, 10),
    "averaged by hand, and divided again": by_hand(0.5, 20),
    "unequal between micro-batches and ranks": everywhere_unequal(),
    "divided by padding": padded(),
    "means by class weights": means_by_class_weights(),
    "the class weights of another window": by_the_class_weights_of_another_window(),
    "divided by first tokens, too": first_tokens_counted(),
    "never synchronised": on_ranks(lambda n: n[0], synced=False),
    "the scaler bypassed": scaled(events=[UPDATE]),
    "clipped before unscaling": scaled(
        events=[CLIP_SCALED, STEP, UPDATE], post_factor=1 / 1024 / 900, norm=1 / 1024
    ),
    "gradients of the last window": leaked(),
}


@pytest.mark.parametrize("case", CASES)
def test_the_texts_of_a_finding(case: str, snapshot: SnapshotAssertion) -> None:
    texts = [finding_text(finding) for finding in judged(CASES[case]).findings]
    assert texts, "no rule reports it"
    assert texts == snapshot
