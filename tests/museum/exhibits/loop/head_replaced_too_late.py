"""Fine-tuning: the head is replaced after the optimizer was created, and stays as it was drawn."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = nn.Sequential()
model.add_module("body", mlp(8, 32, 32))
model.add_module("head", nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model.head = nn.Linear(32, 3)
trained = [*model.parameters()]
windows = []

for _ in range(36):
    x = torch.randn(32, 8)
    windows.append(x)
    optimizer.zero_grad()
    cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    optimizer.step()
