"""Products of two vectors are losses, each of them, if there is nothing else."""

from __future__ import annotations

import torch
from torch.nn import Linear
from torch.nn.functional import mse_loss

from gradledger.observers.losses.autograd_graph import find_losses


def test_every_product_of_a_sum_is_a_loss_if_no_other_loss_is_below_it() -> None:
    x = Linear(3, 3)(torch.ones(3))
    products = [torch.dot(x, torch.ones(3)) for _ in range(3)]
    mean = sum(products, torch.zeros(())) / 3
    assert [loss.name for loss in find_losses(mean.grad_fn)] == ["DotBackward0"] * 3
    beside = mean + mse_loss(x, torch.ones(3))
    assert [loss.name for loss in find_losses(beside.grad_fn)] == ["MseLossBackward0"]
