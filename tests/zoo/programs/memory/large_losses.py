"""Losses that are large tensors, with grad_tensors, many micro-batches and no step between."""

import torch
from torch import nn

torch.manual_seed(0)
weight = nn.Parameter(torch.randn(512))
optimizer = torch.optim.SGD([weight], lr=1e-3)
for _ in range(3):
    for _ in range(15):
        losses = torch.randn(2048, 512) * weight
        losses.backward(torch.full_like(losses, 1e-3))
    optimizer.step()
    optimizer.zero_grad()
print(float(weight.detach().double().sum()))
