"""Leaves while futures of an executor are still pending, cancelled at exit."""

import time
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


pool = ThreadPoolExecutor(1)
futures = [pool.submit(train, 3) for _ in range(4)]
futures[0].result()
pool.shutdown(wait=False, cancel_futures=True)
while not all(future.done() for future in futures):
    time.sleep(0.01)
print(futures[0].done(), futures[-1].cancelled())
