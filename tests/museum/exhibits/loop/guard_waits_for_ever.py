"""A guard compares the norm with an average that one bad batch made NaN: no norm is less."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

STEPS, BAD = 60, 30

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = 1.0
windows = []

for step in range(STEPS):
    x = torch.randn(32, 8) * (float("nan") if step == BAD else 1)
    loss = mse_loss(model(x), x[:, :2].sin())
    optimizer.zero_grad()
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    average = 0.9 * average + 0.1 * norm
    if step != BAD:
        windows.append([x])
    if norm < 10 * average:
        optimizer.step()
