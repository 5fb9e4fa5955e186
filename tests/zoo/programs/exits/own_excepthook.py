"""sys.excepthook and threading.excepthook of the program's own."""

import sys
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


sys.excepthook = lambda kind, error, trace: print("hook:", kind.__name__, error)
threading.excepthook = lambda arguments: print("thread:", arguments.exc_type.__name__)
train()
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
print(model.weight.tolist())
raise KeyError("handled by the hook")
