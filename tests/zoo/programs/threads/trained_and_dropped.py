"""Threads build models, train and drop them, over and over: gradients are freed all the time."""

import threading

import torch
from torch import nn

totals = {}


def work(number):
    total = 0.0
    for trial in range(12):
        generator = torch.Generator().manual_seed(100 * number + trial)
        weights = [nn.Parameter(torch.randn(64, 64, generator=generator) / 8) for _ in range(4)]
        optimizer = torch.optim.SGD(weights, lr=1e-2)
        for _ in range(6):
            hidden = torch.randn(8, 64, generator=generator)
            for weight in weights:
                hidden = torch.tanh(hidden @ weight)
            hidden.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        total += float(sum(weight.detach().double().sum() for weight in weights))
    totals[number] = total


threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(totals.items()))
