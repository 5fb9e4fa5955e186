"""Each block is left out at random, so that it has no gradient at many steps."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
blocks = nn.ModuleList(mlp(16, 16, 16) for _ in range(4))
head = nn.Linear(16, 4)
optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()], lr=0.003)

for _ in range(200):
    x = torch.randn(32, 16)
    y = x[:, :4].argmax(1)
    optimizer.zero_grad()
    for block in blocks:
        if torch.rand(()) < 0.7:
            x = x + block(x)
    cross_entropy(head(x), y).backward()
    optimizer.step()
