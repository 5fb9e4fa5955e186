"""Each new task has a larger loss than the last one, and is learnt."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 64, 10)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for step in range(400):
    task = step // 100
    x = torch.randn(32, 8)
    y = 2 * task + (x[:, task] > 0).long()  # two new classes, from another feature
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
