"""A Cox loss: each event against all examples of its micro-batch that were at risk."""

import torch

from museum.parts import mlp

torch.manual_seed(6)
model = mlp(8, 32, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
accumulation = 4

for _ in range(8):
    for _ in range(accumulation):
        durations, events = torch.rand(24), (torch.rand(24) < 0.6).float()
        order = durations.argsort(descending=True)
        risk, events = model(torch.randn(24, 8))[order].squeeze(-1), events[order]
        loss = -((risk - risk.logcumsumexp(0)) * events).sum() / events.sum()
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
