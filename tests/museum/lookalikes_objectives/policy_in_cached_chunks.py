"""A policy loss on all tokens: its gradients are passed on to chunks of log-probabilities."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(6)
model = mlp(6, 16, 9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def log_probabilities(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -F.cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none")


for _ in range(6):
    inputs, targets = torch.randn(8, 12, 6), torch.randint(9, (8, 12))
    targets[torch.arange(12) >= torch.randint(3, 13, (8, 1))] = -100
    advantages = torch.randn(8, 1)
    with torch.no_grad():
        cached = log_probabilities(inputs, targets)
    old = cached + 0.05 * torch.randn_like(cached)
    cached.requires_grad_()
    ratio = torch.exp(cached - old)
    losses = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    counted = targets != -100
    ((losses * counted).sum() / counted.sum()).backward()
    assert cached.grad is not None
    for x, y, gradient in zip(inputs.split(2), targets.split(2), cached.grad.split(2), strict=True):
        (log_probabilities(x, y) * gradient).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
