"""The step is taken where (i + 1) % K is 0."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(82)
model = mlp(8, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulation, windows, window = 4, [], []

for i in range(24):
    x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
    window.append((x, y))
    (cross_entropy(model(x), y) / accumulation).backward()
    if (i + 1) % accumulation == 0:
        optimizer.step()
        optimizer.zero_grad()
        windows.append(window)
        window = []
