"""A guard drops each window whose norm is above a limit, which most norms exceed."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

LIMIT = 0.6

torch.manual_seed(3)
model = mlp(8, 32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
true = torch.randn(8, 4)
windows = []

for _ in range(60):
    window = []
    for _ in range(2):
        x = torch.randn(16, 8)
        window.append((x, (x @ true).argmax(1)))
        loss = F.cross_entropy(model(x), window[-1][1])
        (loss / 2).backward()
    windows.append(window)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if norm < LIMIT:
        optimizer.step()
    optimizer.zero_grad()
