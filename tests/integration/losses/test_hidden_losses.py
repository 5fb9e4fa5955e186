"""A function that hides its graph and reduces by itself: judged on evidence, or not at all.

The truth are the weights that turn the gradients of single tokens, in double precision, into the
gradient that was applied: see ``helpers.training.Truth``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.loops import answer, count
from helpers.projected import LOOPS, FusedLoss, assert_judged_right, train_projected
from helpers.training import (
    CLASSES,
    IGNORED,
    Batch,
    Batches,
    Recording,
    Truth,
    Witness,
    assert_ledger_is_true,
    recording,
    tiny_model,
    tokens,
    windows,
)

from .hidden_losses import ClassWeighted, Focal, Hinge, OfHidden, OfLogits

UNEQUAL, MISSING = "reduction.token_weights_unequal", "reduction.missing_division"
DECLARE = "ledger.micro_batch(tokens=..., reduction=...)"

# What the function divides by, and what the loop divides its result by.
Divisors = Callable[[Batch, Batches], tuple[float, float]]


def inside(batch: Batch, window: Batches) -> tuple[float, float]:
    return count(window), 1.0


def outside(batch: Batch, window: Batches) -> tuple[float, float]:
    return 1.0, count(window)


def mean_of_means(batch: Batch, window: Batches) -> tuple[float, float]:
    return tokens(batch), len(window)


def undivided(batch: Batch, window: Batches) -> tuple[float, float]:
    return tokens(batch), 1.0


of_hidden: Any = OfHidden.apply
of_logits: Any = OfLogits.apply


def train_logits(
    function: Any,
    divisors: Divisors,
    watched: AbstractContextManager[object],
    steps: int = 4,
    more: Callable[[Tensor], Tensor] | None = None,
) -> tuple[nn.Module, Witness]:
    """The usual loop with a loss of logits, and ``more`` that is added to it."""
    model = tiny_model()
    with watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        witness = Witness(model, optimizer)
        for window in windows(steps):
            for inputs, labels in window:
                within, after = divisors((inputs, labels), window)
                logits = model(inputs).flatten(0, 1)
                loss = function.apply(logits, labels.flatten(), within) / after
                (loss if more is None else loss + more(logits)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, witness


def hidden_projection(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    divisor = 1.0 if reduction == "sum" else (labels != IGNORED).sum()
    loss: Tensor = of_hidden(hidden, head, labels, divisor)
    return loss


def train_hidden(loop: str, watched: AbstractContextManager[object]) -> tuple[nn.Module, Witness]:
    return train_projected(hidden_projection, LOOPS[loop], watched, steps=12, learning_rate=0.02)


@pytest.mark.parametrize("divisors", [inside, outside, mean_of_means, undivided])
def test_weights_of_a_cross_entropy_of_logits_are_those_that_were_applied(
    divisors: Divisors,
) -> None:
    recorded = Recording()
    model, witness = train_logits(OfLogits, divisors, recording(recorded))
    for facts, applied, window in zip(recorded.facts(), witness.steps, windows(4), strict=True):
        assert_ledger_is_true(facts, Truth.of(model, applied, window))


@pytest.mark.parametrize(
    ("divisors", "expected"),
    [
        (inside, ({}, "balanced")),
        (outside, ({}, "balanced")),
        (mean_of_means, ({UNEQUAL: 1}, "broken")),
        (undivided, ({MISSING: 1, UNEQUAL: 1}, "broken")),
    ],
)
def test_a_cross_entropy_of_logits_is_judged(divisors: Divisors, expected: object) -> None:
    recorded = Recording()
    train_logits(OfLogits, divisors, recording(recorded))
    assert answer(recorded) == expected


def test_the_record_states_how_the_reduction_was_found() -> None:
    recorded = Recording()
    train_logits(OfLogits, mean_of_means, recording(recorded))
    (term,) = recorded.records()[0].micro_batches[0].terms
    assert term.kind == "NllLoss:OfLogitsBackward"
    assert term.reduction == "mean"
    assert term.inferred is not None
    assert term.inferred.startswith("exact")


@pytest.mark.parametrize("function", [ClassWeighted, Focal])
@pytest.mark.parametrize("divisors", [inside, mean_of_means])
def test_weights_of_its_own_are_not_mistaken_for_a_plain_cross_entropy(
    function: Any, divisors: Divisors
) -> None:
    recorded = Recording()
    train_logits(function, divisors, recording(recorded), steps=12)
    for facts in recorded.facts():
        assert facts.ledger is None or facts.factor_unmeasured is not None
    accused, verdict = answer(recorded)
    assert verdict in ("incomplete", "broken")
    assert accused.keys() <= ({UNEQUAL} if divisors is mean_of_means else set())


def test_a_loop_that_counts_tokens_without_a_gradient_is_not_accused() -> None:
    def mean_weighed_by_its_tokens(batch: Batch, window: Batches) -> tuple[float, float]:
        return tokens(batch), count(window) / tokens(batch)

    recorded = Recording()
    train_logits(Hinge, mean_weighed_by_its_tokens, recording(recorded), steps=32)
    assert answer(recorded) == ({}, "incomplete")
    reasons = [facts.unmeasured or "" for facts in recorded.facts()]
    (reason, *_) = [each for each in reasons if "some rows of its input got no gradient" in each]
    assert DECLARE in reason


def norm_of_logits(logits: Tensor) -> Tensor:
    return 0.01 * logits.square().mean()


def test_beside_another_loss_nothing_is_inferred() -> None:
    recorded = Recording()
    train_logits(OfLogits, mean_of_means, recording(recorded), more=norm_of_logits)
    assert answer(recorded) == ({}, "incomplete")
    reason = recorded.facts()[0].unmeasured
    assert reason is not None
    assert "OfLogits hides its graph beside other losses" in reason
    assert DECLARE in reason


def test_of_a_projection_the_relative_weights_are_inferred_from_many_micro_batches() -> None:
    recorded = Recording()
    train_hidden("mean_of_means", recording(recorded))
    facts = recorded.facts()
    reason = facts[0].unmeasured
    assert reason is not None
    assert "4 micro-batches do not yet show whether it is a mean or a sum" in reason
    assert DECLARE in reason
    last = facts[-1]
    assert last.ledger is not None, last.unmeasured
    sizes = torch.tensor([float(tokens(batch)) for batch in windows(12)[-1]])
    uneven = float((0.25 - sizes / sizes.sum()).abs().sum() / 2)
    assert last.ledger.misallocation == pytest.approx(uneven, abs=1e-6)
    assert last.factor_unmeasured is not None
    assert last.factor_unmeasured == (
        "OfHidden hides its graph: its value shows with 99.99% certainty that it is "
        "a mean over its tokens, not whether it multiplies by a further factor"
    )
    assert list(answer(recorded)[0]) == [UNEQUAL]


def test_of_a_projection_a_right_loop_is_not_accused_and_its_balance_not_measured() -> None:
    recorded = Recording()
    train_hidden("right", recording(recorded))
    last = recorded.facts()[-1]
    assert last.ledger is not None, last.unmeasured
    assert last.ledger.misallocation < 1e-6
    assert answer(recorded) == ({}, "incomplete")


def weighed_in_bf16(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """A mean times its tokens, with the rounding errors of half precision."""
    mean = hidden_projection(hidden, head, labels, "mean")
    return mean.bfloat16() * (labels != IGNORED).sum().item()


def test_factors_with_the_rounding_errors_of_bf16_follow_the_tokens() -> None:
    recorded = Recording()
    train_projected(weighed_in_bf16, LOOPS["right"], recording(recorded), 12, learning_rate=0.02)
    assert [facts.unmeasured for facts in recorded.facts()[-4:]] == [None] * 4
    assert answer(recorded) == ({}, "incomplete")


@pytest.mark.parametrize("divisors", [inside, outside, mean_of_means])
def test_training_ends_in_the_same_bits(divisors: Divisors) -> None:
    watched, _ = train_logits(OfLogits, divisors, recording(), steps=20)
    alone, _ = train_logits(OfLogits, divisors, nullcontext(), steps=20)
    for ours, theirs in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("loop", ["right", "mean_of_means"])
def test_training_of_a_projection_ends_in_the_same_bits(loop: str) -> None:
    watched, _ = train_hidden(loop, recording())
    alone, _ = train_hidden(loop, nullcontext())
    for ours, theirs in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def chunked(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """PyTorch's own, in chunks: a custom operator."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=4)
    return F.linear_cross_entropy(
        hidden, head, labels, reduction=reduction, ignore_index=IGNORED, options=options
    )


def unreduced(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """The same, one loss for each token."""
    total = chunked(hidden, head, labels, "none").sum()
    return total if reduction == "sum" else total / (labels != IGNORED).sum()


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="since PyTorch 2.13")
@pytest.mark.parametrize(
    ("fused", "loop"),
    [*((chunked, loop) for loop in LOOPS), (unreduced, "right"), (unreduced, "mean_of_means")],
)
def test_linear_cross_entropy_of_pytorch_is_judged_right(fused: FusedLoss, loop: str) -> None:
    assert_judged_right(fused, LOOPS[loop])


@pytest.mark.parametrize("divisors", [inside, mean_of_means])
def test_a_loss_scale_is_no_part_of_the_weights(divisors: Divisors) -> None:
    recorded, model = Recording(), tiny_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with recording(recorded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(4):
            for inputs, labels in window:
                within, after = divisors((inputs, labels), window)
                logits = model(inputs).flatten(0, 1)
                loss = of_logits(logits, labels.flatten(), within) / after
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ledgers = [facts.ledger for facts in recorded.facts()]
    assert [ledger and ledger.balance for ledger in ledgers] == pytest.approx([1.0] * 4)
    assert list(answer(recorded)[0]) == ([UNEQUAL] if divisors is mean_of_means else [])


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="since PyTorch 2.13")
def test_class_weights_are_the_divisor_of_a_fused_mean() -> None:
    weights = torch.linspace(0.5, 2.0, CLASSES)

    def weighted(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=4)
        return F.linear_cross_entropy(
            hidden, head, labels, weight=weights, ignore_index=IGNORED, options=options
        )

    recorded = Recording()
    train_projected(weighted, LOOPS["mean_of_means"], recording(recorded))
    (term,) = recorded.records()[0].micro_batches[0].terms
    counted = windows(1)[0][0][1].flatten()
    assert term.class_weight == pytest.approx(float(weights[counted[counted != IGNORED]].sum()))
    assert set(answer(recorded)[0]) == {UNEQUAL}


def test_the_class_weights_of_a_vector_of_losses_are_added_up() -> None:
    weights = torch.linspace(0.5, 2.0, CLASSES)

    def weighted(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
        each = F.cross_entropy(
            hidden @ head.T, labels, weights, ignore_index=IGNORED, reduction="none"
        )
        return each.sum() / weights[labels[labels != IGNORED]].sum()

    recorded = Recording()
    train_projected(weighted, LOOPS["mean_of_means"], recording(recorded))
    (term,) = recorded.records()[0].micro_batches[0].terms
    counted = windows(1)[0][0][1].flatten()
    assert term.class_weight == pytest.approx(float(weights[counted[counted != IGNORED]].sum()))
    assert set(answer(recorded)[0]) == {UNEQUAL}
