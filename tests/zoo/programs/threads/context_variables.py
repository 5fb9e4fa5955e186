"""Every training sees its own context variable, in hooks of its tensors too."""

import contextvars
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

trial = contextvars.ContextVar("trial")


def train(number):
    trial.set(number)
    values = set()
    weight = nn.Parameter(torch.full((8,), float(number)))
    weight.register_hook(lambda gradient: values.add(trial.get()))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    return number, values, weight.tolist()


with ThreadPoolExecutor(2) as pool:
    futures = [pool.submit(contextvars.copy_context().run, train, number) for number in range(6)]
print([future.result() for future in futures])
print(trial.get("unset"))
