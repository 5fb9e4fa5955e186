"""Rare classes weigh more: CrossEntropyLoss(weight=...), the divisor is a sum of weights."""

import torch
from torch import nn

from museum.parts import mlp

torch.manual_seed(9)
model = mlp(8, 16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0, 0.5]))

for _ in range(8):
    optimizer.zero_grad()
    x, y = torch.randn(40, 8), torch.randint(0, 4, (40,))
    criterion(model(x), y).backward()
    optimizer.step()
