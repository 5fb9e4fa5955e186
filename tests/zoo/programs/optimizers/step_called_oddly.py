"""Step is replaced on the instance, called unbound and through super."""

import functools

import torch
from torch import nn


class Counting(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        type(self).calls += 1
        return super().step(closure)


torch.manual_seed(0)
weight = nn.Parameter(torch.randn(8))
optimizer = Counting([weight], lr=0.05)
original = optimizer.step
optimizer.step = functools.partial(original, None)
steps = [
    lambda: optimizer.step(),
    lambda: original(),
    lambda: torch.optim.SGD.step(optimizer),
    lambda: Counting.step(optimizer, None),
    lambda: super(Counting, optimizer).step(closure=None),
]
for _ in range(3):
    for step in steps:
        optimizer.zero_grad()
        weight.square().sum().backward()
        step()
print(Counting.calls, weight.tolist())
