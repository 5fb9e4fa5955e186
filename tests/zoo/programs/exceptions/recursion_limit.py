"""A recursion limit that leaves the program little room; it recovers from hitting it."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()


def at_depth(depth):
    return at_depth(depth - 1) if depth else train()


def endless():
    return endless()


train()
sys.setrecursionlimit(120)
for _ in range(10):
    try:
        endless()
    except RecursionError:
        pass
    at_depth(40)
print(model.weight.tolist())
