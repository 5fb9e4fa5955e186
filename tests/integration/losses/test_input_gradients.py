"""Backwards that give a gradient to an input: attacks of adversarial training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradledger.observers.losses.input_gradients import FIRST_SEARCHES, SEARCHES_AFTER
from helpers.training import Recording, recording


def reached(recorded: Recording) -> list[list[bool]]:
    """For each step, its micro-batches."""
    return [[m.reaches_input for m in record.micro_batches] for record in recorded.records()]


Loss = Callable[[Tensor, Tensor], Tensor]


def weighted(logits: Tensor, y: Tensor) -> Tensor:
    """By a weight for each sample: a product with a tensor, as of cached gradients."""
    return (cross_entropy(logits, y, reduction="none") * torch.linspace(0.5, 1.5, 8)).mean()


def attack(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    perturbed = x.detach().clone().requires_grad_(True)
    loss(model(perturbed), y).backward()
    assert perturbed.grad is not None
    return x + 0.1 * perturbed.grad.sign()


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, hostile: bool, loss: Loss = cross_entropy
) -> None:
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    x = attack(model, x, y, loss) if hostile else x
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()


def test_every_attack_is_seen_and_no_backward_of_the_loss() -> None:
    model = nn.Linear(4, 3)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2 * FIRST_SEARCHES):
            step(model, optimizer, hostile=True)
    assert reached(recorded) == [[True, False]] * (2 * FIRST_SEARCHES)


@pytest.mark.parametrize("loss", [cross_entropy, weighted])
def test_one_that_begins_later_is_seen_after_gradients_were_zeroed(loss: Loss) -> None:
    model = nn.Linear(4, 3)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(40):
            step(model, optimizer, hostile=number >= 30, loss=loss)
    assert SEARCHES_AFTER >= 2
    assert reached(recorded) == [[False]] * 30 + [[False, False]] + [[True, False]] * 9


def test_parameters_and_tensors_that_an_optimizer_holds_are_no_inputs() -> None:
    weights = [torch.randn(4, 3, requires_grad=True), torch.zeros(3, requires_grad=True)]
    unheld = nn.Linear(4, 4)
    with recording() as recorded:
        optimizer = torch.optim.SGD(weights, lr=0.1)
        for _ in range(3):
            logits = unheld(torch.randn(8, 4)) @ weights[0] + weights[1]
            cross_entropy(logits, torch.randint(3, (8,))).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert reached(recorded) == [[False]] * 3
