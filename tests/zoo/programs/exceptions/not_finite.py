"""Losses and gradients that are infinite or NaN; steps with them and without."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(9):
    optimizer.zero_grad()
    inputs = torch.randn(2, 4)
    inputs[0, 0] = (1.0, float("inf"), float("nan"))[step % 3]
    model(inputs).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(norm.item())
    if torch.isfinite(norm):
        optimizer.step()
optimizer.step()
print(model.weight.tolist())
