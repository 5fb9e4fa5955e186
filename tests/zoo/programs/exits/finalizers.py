"""Finalizers, __del__ of module globals and weakref callbacks run at the end, and use torch."""

import sys
import weakref

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(steps=10):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


class Last:
    def __del__(self):
        weight = nn.Parameter(torch.ones(2))
        weight.square().sum().backward()
        sys.stdout.write(f"deleted {weight.grad.tolist()}\n")
        sys.stdout.flush()


class Thing:
    pass


last, thing = Last(), Thing()
weakref.finalize(thing, print, "finalized")
train()
print(model.weight.tolist(), flush=True)
