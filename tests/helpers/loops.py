"""The usual training loop, for losses that are right and losses that are not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from helpers.training import (
    CLASSES,
    HIDDEN,
    INPUTS,
    Batch,
    Batches,
    Recording,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

Loss = Callable[[nn.Module, Batch, Batches], Tensor]  # of one micro-batch in its window
Loop = Callable[[nn.Module, list[Batches]], None]  # trains the model on these windows


def train(
    loss_of: Loss,
    data: list[Batches],
    model: nn.Module | None = None,
    before_step: Callable[[nn.Module, Batches], object] = lambda model, window: None,
) -> Recording:
    """The usual loop."""
    model = tiny_model() if model is None else model
    with recording() as seen:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
        for window in data:
            for batch in window:
                loss_of(model, batch, window).backward()
            before_step(model, window)
            optimizer.step()
            optimizer.zero_grad()
    return seen


def answer(seen: Recording) -> tuple[dict[str, int], str]:
    """Findings, and the verdict."""
    evaluation = seen.evaluation()
    return accused(evaluation), evaluation.verdict


def count(window: Batches) -> int:
    return sum(map(tokens, window))


def share(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    """A micro-batch's part of the mean over the window's tokens."""
    return cross_entropy(model, batch, reduction="sum") / count(window)


@cache
def run_twice(loop: Loop, steps: int = 8) -> Recording:
    """With the hooks and without, which must leave the same bits."""
    recorded = Recording()
    watched, alone = _run(loop, recording(recorded), steps), _run(loop, nullcontext(), steps)
    for ours, theirs in zip(watched, alone, strict=True):
        assert torch.equal(ours, theirs)
    return recorded


def _run(loop: Loop, watched: AbstractContextManager[object], steps: int) -> list[Tensor]:
    """Parameters and random state after a loop."""
    torch.manual_seed(0)
    model = nn.Sequential(tiny_model(), nn.Dropout(0.2))
    with watched:
        loop(model, windows(steps))
    return [*model.parameters(), torch.get_rng_state()]


EQUAL = (((4, 4), (3, 5), (7, 1), (6, 2)),)


@dataclass
class Two:
    """Outputs of a model with two heads."""

    first: Tensor
    second: Tensor


class TwoHeads(nn.Module):
    """One body, two classifiers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(INPUTS, HIDDEN)
        self.first, self.second = nn.Linear(HIDDEN, CLASSES), nn.Linear(HIDDEN, CLASSES)

    def forward(self, inputs: Tensor) -> Two:
        """Both heads' logits."""
        hidden = self.body(inputs).tanh().flatten(0, 1)
        return Two(self.first(hidden), self.second(hidden))
