"""The main thread is done; others train on for a while, and the interpreter waits."""

import threading
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


def work():
    for _ in range(20):
        train(1)
        time.sleep(0.01)
    print("done", model.weight.tolist())


threading.Thread(target=work).start()
print("main is done")
