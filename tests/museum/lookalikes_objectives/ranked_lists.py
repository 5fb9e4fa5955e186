"""A reward model: every ranked list counts once, however many pairs it has."""

import itertools

import torch
import torch.nn.functional as F

from museum.parts import mlp

LISTS = 6

torch.manual_seed(77)
model = mlp(8, 16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for _ in range(8):
    for _ in range(LISTS):
        rewards = model(torch.randn(int(torch.randint(2, 8, ())), 8)).squeeze(1)
        better, worse = zip(*itertools.combinations(range(len(rewards)), 2), strict=True)
        loss = -F.logsigmoid(rewards[list(better)] - rewards[list(worse)]).sum() / len(better)
        (loss / LISTS).backward()
    optimizer.step()
    optimizer.zero_grad()
