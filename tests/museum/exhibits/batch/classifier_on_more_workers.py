"""A classifier, resumed on a machine that fits twice as much: twice the rows per step."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
windows = []

for fits in (8, 16):  # rows that the machine fits
    accumulation = 4
    for _ in range(12):
        window = [(torch.randn(fits, 8), torch.randint(0, 4, (fits,))) for _ in range(accumulation)]
        for x, y in window:
            (cross_entropy(model(x), y) / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
        windows.append(window)
