"""A probe: the optimizer holds the head only, and nobody froze the body, which gets gradients."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = nn.Sequential(mlp(8, 32, 32), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model[1].parameters(), lr=1e-2)

for _ in range(36):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    optimizer.step()
