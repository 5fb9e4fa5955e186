"""A hinge loss on pairs: its gradients are passed on to chunks of log-probabilities."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(5)
model = mlp(6, 16, 9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def log_probabilities(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none")
    return -losses.sum(1)


for _ in range(6):
    inputs, targets = torch.randn(2, 8, 12, 6), torch.randint(9, (2, 8, 12))
    lengths = torch.randint(3, 13, (2, 8, 1))
    targets[torch.arange(12) >= lengths] = -100
    with torch.no_grad():
        cached = torch.stack(
            [log_probabilities(*side) for side in zip(inputs, targets, strict=True)]
        )
    chosen, rejected = cached.requires_grad_()
    torch.relu(1 - 0.1 * (chosen - rejected)).mean().backward()
    assert cached.grad is not None
    for rows in torch.arange(8).split(2):
        products = [
            (log_probabilities(x[rows], y[rows]) * gradient[rows]).sum()
            for x, y, gradient in zip(inputs, targets, cached.grad, strict=True)
        ]
        torch.stack(products).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
