"""The weights of candidate operations get an optimizer that starts after a few epochs."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
operations, head = nn.ModuleList([mlp(8, 16, 8) for _ in range(3)]), nn.Linear(8, 1)
architecture = nn.Parameter(1e-3 * torch.randn(3))
weights = [*operations.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
of_architecture = torch.optim.Adam([architecture], lr=3e-3)
FIRST_EPOCH = 5


def loss_of(x: torch.Tensor) -> torch.Tensor:
    shares = architecture.softmax(0)
    mixed = sum(share * each(x) for share, each in zip(shares, operations, strict=True))
    return mse_loss(head(mixed), x[:, :1].sin())


for epoch in range(8):
    for _ in range(10):
        if epoch >= FIRST_EPOCH:
            of_architecture.zero_grad()
            loss_of(torch.randn(32, 8)).backward()
            of_architecture.step()
        optimizer.zero_grad()
        loss_of(torch.randn(32, 8)).backward()
        optimizer.step()
