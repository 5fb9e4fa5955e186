"""The task of a loss has a number, the same each time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradledger.observers.losses import tasks
from gradledger.observers.losses.autograd_graph import find_losses
from gradledger.observers.losses.tasks import Tasks


def number(layers: Tasks, loss: Any) -> int | None:
    (found,) = find_losses(loss.grad_fn)
    return layers.number(found)


def test_losses_over_one_layer_are_of_one_task_and_over_another_layer_of_another() -> None:
    body, first, second = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3, bias=False)
    layers, x = Tasks(), torch.randn(5, 4)
    classes = torch.tensor([0, 1, 2, 0, 1])
    numbers = [
        number(layers, loss)
        for loss in (
            F.cross_entropy(first(body(x)), classes) / 4,
            F.cross_entropy(second(body(x)), classes),
            F.cross_entropy(first(body(x)).reshape(1, 5, 3).squeeze(0), classes),
            F.cross_entropy(second(body(x)), classes, reduction="sum") / 7,
        )
    ]
    assert numbers == [1, 2, 1, 2]


def test_a_bias_that_a_layer_adds_separately_makes_no_other_task() -> None:
    body, head = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)
    layers, numbers = Tasks(), []
    for rows in (5, 1):  # strides of the output of the GRU allow one product with bias for one row
        logits = head(body(torch.randn(rows, 6, 4))[0]).flatten(0, 1)
        numbers.append(number(layers, F.cross_entropy(logits, torch.zeros(len(logits)).long())))
    assert numbers == [1, 1]


def test_losses_of_real_and_of_fake_data_are_of_two_tasks() -> None:
    critic, x = nn.Linear(4, 1), torch.randn(5, 4)
    layers = Tasks()
    real, fake = F.softplus(-critic(x)).mean(), F.softplus(critic(x)).mean()
    assert [number(layers, real), number(layers, fake), number(layers, real)] == [1, 2, 1]


def test_the_losses_of_two_frozen_critics_are_of_two_tasks() -> None:
    generator = nn.Linear(4, 6)
    critics = [nn.Linear(6, 1), nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 1, 6))]
    layers, numbers = Tasks(), []
    for critic in critics * 2:
        critic.requires_grad_(False)
        loss = F.softplus(-critic(generator(torch.randn(5, 4)))).mean()
        numbers.append(number(layers, loss))
    assert numbers == [1, 2, 1, 2]


def test_frozen_weights_that_saved_tensor_hooks_hold_are_not_read() -> None:
    reads: list[torch.Tensor] = []

    def read(tensor: torch.Tensor) -> torch.Tensor:
        reads.append(tensor)
        return tensor

    generator, critic = nn.Linear(4, 6), nn.Linear(6, 1).requires_grad_(False)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, read):
        loss = F.softplus(-critic(generator(torch.randn(5, 4)))).mean()
    assert number(Tasks(), loss) is None and not reads


def test_a_loss_without_a_layer_has_no_number() -> None:
    towers = nn.Linear(4, 3), nn.Linear(4, 3)
    left, right = (tower(torch.randn(4, 4)) for tower in towers)
    similarities = left @ right.T
    assert number(Tasks(), F.cross_entropy(similarities, torch.arange(4))) is None


def test_looking_ends_where_all_losses_have_one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LOSSES", 2)
    layers, targets = Tasks(), torch.tensor([0, 1])
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    x = torch.randn(2, 4)
    for _ in range(2):
        assert number(layers, F.cross_entropy(model(x), targets)) == 1
    assert number(layers, F.cross_entropy(other(x), targets)) == 1


def test_parameters_that_are_made_anew_each_time_are_not_numbered_for_ever() -> None:
    layers, x, targets = Tasks(), torch.randn(2, 4), torch.tensor([0, 1])
    models = [nn.Linear(4, 3) for _ in range(tasks.MAX_TASKS + 1)]
    numbers = [number(layers, F.cross_entropy(model(x), targets)) for model in models]
    assert numbers == [*range(1, tasks.MAX_TASKS + 1), None]


def test_what_ddp_puts_around_its_outputs_in_one_iteration_makes_no_other_task() -> None:
    class _DDPSink(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, outputs: Any) -> Any:
            return outputs.view_as(outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0]

    layers, layer, x = Tasks(), nn.Linear(4, 3), torch.randn(2, 4)
    passed_on: Any = _DDPSink.apply(layer(x))  # type: ignore[no-untyped-call]
    targets = torch.tensor([0, 1])
    losses = [F.cross_entropy(outputs, targets) for outputs in (passed_on, layer(x))]
    assert [number(layers, loss) for loss in losses] == [1, 1]
