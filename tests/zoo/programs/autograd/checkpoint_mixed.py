"""Reentrant checkpoints within non-reentrant ones within another backward's hook."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
optimizer = torch.optim.SGD(layers.parameters(), lr=0.05)


def inner(inputs):
    return checkpoint(layers[1], layers[0](inputs), use_reentrant=True)


for _ in range(10):
    optimizer.zero_grad()
    inputs = torch.randn(4, 8, requires_grad=True)
    hidden = checkpoint(inner, inputs, use_reentrant=False)
    checkpoint(layers[2], hidden, use_reentrant=True).square().mean().backward()
    optimizer.step()
print([layer.weight.tolist() for layer in layers])
