"""A loss in whatever wrapping: the same bits, its tokens and their weights, and the right answer.

Losses that hide their graph are in ``test_hidden_losses.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from gradledger.observers.losses import saved_hooks
from helpers.loops import answer, count
from helpers.training import Batch, Batches, Recording, recording, tiny_model, tokens, windows

from .wrapped_cross_entropies import (
    OBSERVABLE,
    CrossEntropy,
    checkpointed,
    in_checkpointed_chunks,
    offloaded,
)

# the compiler looks at the .grad of activations
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

UNEQUAL = "reduction.token_weights_unequal"
STEPS = 6
HELD = [checkpointed, offloaded, in_checkpointed_chunks]  # by saved-tensor hooks
MEASURED = [each for each in OBSERVABLE if saved_hooks.reported or each not in HELD]

Reduced = Callable[[CrossEntropy, Batch, Batches], Tensor]


def right(wrapped: CrossEntropy, batch: Batch, window: Batches) -> Tensor:
    return wrapped(batch[0], batch[1], "sum") / count(window)


def mean_of_means(wrapped: CrossEntropy, batch: Batch, window: Batches) -> Tensor:
    return wrapped(batch[0], batch[1], "mean") / len(window)


def train(
    wrapped: CrossEntropy,
    reduced: Reduced,
    watched: AbstractContextManager[object],
    steps: int = STEPS,
) -> list[Tensor]:
    """The usual loop over a model with dropout; what it leaves behind."""
    model = nn.Sequential(tiny_model(), nn.Dropout(0.2))
    with watched:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for window in windows(steps):
            for inputs, labels in window:
                logits = model(inputs).flatten(0, 1)
                loss = reduced(wrapped, (logits, labels.flatten()), window)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return [*model.parameters(), torch.get_rng_state()]


@pytest.mark.parametrize("wrapped", OBSERVABLE)
def test_twenty_steps_end_in_the_same_bits(wrapped: CrossEntropy) -> None:
    watched = train(wrapped, right, recording(), steps=20)
    for ours, theirs in zip(watched, train(wrapped, right, nullcontext(), steps=20), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("wrapped", MEASURED)
def test_every_token_is_counted_with_its_weight(wrapped: CrossEntropy) -> None:
    recorded = Recording()
    train(wrapped, right, recording(recorded))
    for facts, window in zip(recorded.facts(), windows(STEPS), strict=True):
        ledger = facts.ledger
        assert ledger is not None, facts.unmeasured
        by_batch = [
            sum(e.tokens for e in ledger.entries if e.micro_batch == index) for index in range(4)
        ]
        assert by_batch == [tokens(batch) for batch in window]
        assert ledger.balance == pytest.approx(1.0, rel=1e-5)
        assert ledger.misallocation < 1e-6


@pytest.mark.parametrize("wrapped", MEASURED)
def test_a_right_loop_is_balanced(wrapped: CrossEntropy) -> None:
    recorded = Recording()
    train(wrapped, right, recording(recorded))
    assert answer(recorded) == ({}, "balanced")


@pytest.mark.parametrize("wrapped", MEASURED)
def test_a_mean_of_means_is_named(wrapped: CrossEntropy) -> None:
    recorded = Recording()
    train(wrapped, mean_of_means, recording(recorded))
    assert answer(recorded) == ({UNEQUAL: 1}, "broken")


@pytest.mark.parametrize("wrapped", HELD)
def test_before_pytorch_2_10_a_loss_inside_a_checkpoint_is_not_evaluated(
    wrapped: CrossEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_hooks, "reported", False)
    recorded = Recording()
    train(wrapped, mean_of_means, recording(recorded))
    assert answer(recorded) == ({}, "incomplete")
