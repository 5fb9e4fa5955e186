"""Clipping after the step, on gradients that are zeroed then."""

import torch
import torch.nn.functional as F

from museum.parts import mlp, points

torch.manual_seed(9)
model = mlp(8, 24, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = [points([8, 8, 8], seed=step) for step in range(6)]
max_norm = 0.2

for batches in windows:
    for observation, action in batches:
        loss = F.mse_loss(model(observation), action) / len(batches)
        loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=max_norm)
    optimizer.zero_grad()
