"""A model whose loss function computes the logits itself, as fused kernels do, and its loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradledger_monitor.model.step_facts import StepFacts
from helpers.loops import answer, count
from helpers.training import (
    CLASSES,
    HIDDEN,
    IGNORED,
    INPUTS,
    Batches,
    Recording,
    Truth,
    Witness,
    recording,
    windows,
)

# Of the hidden states [N, H], the projection [C, H], labels [N] and the reduction.
FusedLoss = Callable[[Tensor, nn.Parameter, Tensor, str], Tensor]


class Loop(NamedTuple):
    """What a loop makes of its loss, and what is true of that."""

    reduction: str
    divisor: Callable[[Batches], float]
    expected: tuple[set[str], str]


UNEQUAL, MISSING = "reduction.token_weights_unequal", "reduction.missing_division"
LOOPS = {
    "right": Loop("sum", count, (set(), "balanced")),
    "mean_of_means": Loop("mean", len, ({UNEQUAL}, "broken")),
    "undivided": Loop("mean", lambda window: 1.0, ({UNEQUAL, MISSING}, "broken")),
}


class Projected(nn.Module):
    """A token classifier without biases at its end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh())
        self.head = nn.Parameter(torch.randn(CLASSES, HIDDEN) / 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(self.body(inputs), self.head.to(inputs.dtype))


def plain(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """What every fused loss computes."""
    return F.cross_entropy(hidden @ head.T, labels, ignore_index=IGNORED, reduction=reduction)


def train_projected(
    fused: FusedLoss,
    loop: Loop,
    watched: AbstractContextManager[object],
    steps: int = 4,
    learning_rate: float = 0.1,
) -> tuple[Projected, Witness]:
    """The usual loop; the model that it leaves behind, and what each step applied."""
    model = Projected()
    with watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
        witness = Witness(model, optimizer)
        for window in windows(steps):
            for inputs, labels in window:
                hidden = model.body(inputs).flatten(0, 1)
                loss = fused(hidden, model.head, labels.flatten(), loop.reduction)
                (loss / loop.divisor(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, witness


def assert_weights_are_true(facts: StepFacts, truth: Truth, tolerance: float = 1e-3) -> None:
    """The ledger's weights make the gradient that was applied."""
    ledger = facts.ledger
    assert ledger is not None, facts.unmeasured
    assert ledger.tokens == len(truth.losses)
    assert abs(ledger.balance / truth.balance - 1) < tolerance
    assert abs(ledger.misallocation - truth.misallocation) < tolerance
    weights = [w for e in ledger.entries for w in [e.weight] * round(e.tokens)]
    assert truth.rebuilt_by(torch.tensor(weights, dtype=torch.double)) < tolerance


def assert_judged_right(fused: FusedLoss, loop: Loop, steps: int = 4) -> Recording:
    """The weights are those that were applied, the answer is right, and no bit is changed."""
    recorded = Recording()
    model, witness = train_projected(fused, loop, recording(recorded), steps)
    for facts, applied, window in zip(recorded.facts(), witness.steps, windows(steps), strict=True):
        assert_weights_are_true(facts, Truth.of(model, applied, window))
    found, verdict = answer(recorded)
    assert (set(found), verdict) == loop.expected
    alone, _ = train_projected(fused, loop, nullcontext(), steps)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    return recorded
