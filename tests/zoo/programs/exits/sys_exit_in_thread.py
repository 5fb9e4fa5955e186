"""sys.exit in a thread ends that thread alone."""

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


def work():
    train()
    sys.exit(9)


thread = threading.Thread(target=work)
thread.start()
thread.join()
train()
print(model.weight.tolist())
