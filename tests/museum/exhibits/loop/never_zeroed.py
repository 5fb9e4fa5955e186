"""A short loop in which zero_grad was forgotten."""

import torch
from torch import nn

from museum.parts import mlp, points

torch.manual_seed(3)
model = mlp(8, 16, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.MSELoss()
windows = [points([24], seed=step) for step in range(8)]

for batches in windows:
    for features, target in batches:
        out = model(features)
        criterion(out, target).backward()
    optimizer.step()
