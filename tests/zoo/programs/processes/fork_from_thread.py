"""A thread forks, between steps of a training in another thread; the children train too."""

import os
import threading

import torch
from torch import nn


def train(seed, steps):
    generator = torch.Generator().manual_seed(seed)
    weight = nn.Parameter(torch.zeros(16))
    optimizer = torch.optim.SGD([weight], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        (weight - torch.randn(16, generator=generator)).square().sum().backward()
        optimizer.step()
    return weight.tolist()


results, statuses = [], []
half_way, forked = threading.Event(), threading.Event()


def work():
    results.append(train(0, 20))
    half_way.set()
    forked.wait()
    results.append(train(2, 20))


def fork():
    for number in range(3):
        child = os.fork()
        if child == 0:
            expected = train(1, 20)
            os._exit(10 + number if expected == train(1, 20) else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


worker = threading.Thread(target=work)
worker.start()
half_way.wait()
forker = threading.Thread(target=fork)
forker.start()
forker.join()
forked.set()
worker.join()
print(statuses, results)
