"""time is frozen, runs backwards and raises, as tests of programs do it."""

import time

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


real = time.time, time.perf_counter, time.monotonic
moments = iter(range(10**9, 0, -7))
train(3)
time.time = lambda: 0.0
train(3)
time.perf_counter = time.monotonic = lambda: float(next(moments))
train(3)


def refuse():
    raise RuntimeError("no clock here")


time.time = time.perf_counter = refuse
try:
    train(3)
finally:
    time.time, time.perf_counter, time.monotonic = real
print(model.weight.tolist())
