"""Threads are switched every microsecond, and rarely: a thread that releases the lock waits for it."""

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


def work(done):
    while not done.is_set():
        sum(range(50))


for interval in (1e-6, 0.02):
    sys.setswitchinterval(interval)
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,))
    thread.start()
    train(5)
    done.set()
    thread.join()
print(model.weight.tolist())
