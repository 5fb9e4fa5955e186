"""Daemon threads that have trained are still there when the interpreter ends."""

import threading

import torch
from torch import nn

trained = threading.Barrier(3)
results = {}


def work(number):
    weight = nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        (weight - number).square().sum().backward()
        optimizer.step()
    results[number] = weight.tolist()
    trained.wait()
    threading.Event().wait()


for number in range(2):
    threading.Thread(target=work, args=(number,), daemon=True).start()
trained.wait()
print(sorted(results.items()))
