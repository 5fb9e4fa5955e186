"""Leaves while futures of an executor are still pending, cancelled at exit."""

import threading
from concurrent.futures import ThreadPoolExecutor

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


started, leave = threading.Event(), threading.Event()


def first():
    train(3)
    started.set()
    leave.wait()


pool = ThreadPoolExecutor(1)
futures = [pool.submit(first), *(pool.submit(train, 3) for _ in range(3))]
started.wait()
pool.shutdown(wait=False, cancel_futures=True)
print(futures[0].running(), [future.cancelled() for future in futures[1:]])
leave.set()
