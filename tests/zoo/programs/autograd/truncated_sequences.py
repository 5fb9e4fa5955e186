"""Truncated backpropagation through time: hidden states are detached in place."""

import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.GRUCell(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.RMSprop([*cell.parameters(), *head.parameters()], lr=0.01)
hidden = torch.zeros(2, 8)
for _ in range(8):
    loss = 0
    for _ in range(5):
        hidden = cell(torch.randn(2, 4), hidden)
        loss = loss + head(hidden).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hidden.detach_()
print(hidden.tolist(), head.weight.tolist())
