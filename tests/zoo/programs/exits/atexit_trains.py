"""atexit handlers, registered before torch and after it, train and print; one raises."""

import atexit

order = []
atexit.register(lambda: print("last", order))
atexit.register(lambda: order.append("before torch"))

import torch
from torch import nn

torch.manual_seed(0)
weight = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)


@atexit.register
def train():
    for _ in range(10):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    order.append("after torch")
    print(weight.tolist())


@atexit.register
def fail():
    order.append("failing")
    raise ValueError("an exit handler fails")


train()
atexit.register(order.append, "late")
