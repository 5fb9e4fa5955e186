"""No thread can be started: the limit of threads is reached, or a thread's start raises."""

import threading

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


def refuse(*args, **kwargs):
    raise RuntimeError("can't start new thread")


threading.Thread.start = refuse
train()
try:
    threading.Thread(target=train).start()
except RuntimeError as error:
    print(error)
print(model.weight.tolist())
