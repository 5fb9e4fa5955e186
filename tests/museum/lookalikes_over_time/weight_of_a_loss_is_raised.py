"""The weight of the loss rises from 0.0001 to 1: the norm rises with it, and the loss is noise."""

import torch
from torch.nn import functional as F

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 32, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

for step in range(220):
    weight = min(1.0, 1e-4 * 10 ** (step / 40))
    loss = F.cross_entropy(model(torch.randn(32, 8)), torch.randint(0, 4, (32,)))
    optimizer.zero_grad()
    (weight * loss).backward()
    optimizer.step()
