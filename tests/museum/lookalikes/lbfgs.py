"""LBFGS: the closure zeroes and evaluates up to twenty times a step."""

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from museum.parts import mlp, points

torch.manual_seed(18)
[(x, y)] = points([64])
model = mlp(8, 6, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, history_size=5)


def closure() -> Tensor:
    """The loss, and its gradients."""
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(8):
    optimizer.step(closure)
