"""A forked child that ends as an interpreter does, after it has trained."""

import os
import sys

import torch
from torch import nn

weight = nn.Parameter(torch.zeros(8))
optimizer = torch.optim.SGD([weight], lr=0.1)


def train(target):
    for _ in range(20):
        optimizer.zero_grad()
        (weight - target).square().sum().backward()
        optimizer.step()


train(1.0)
child = os.fork()
if child == 0:
    train(2.0)
    print("child", weight.tolist())
    sys.exit(3)
_, status = os.waitpid(child, 0)
train(3.0)
print("parent", os.waitstatus_to_exitcode(status), weight.tolist())
