"""Forks four children before anything was trained; each trains and ends with its own status."""

import os

import torch
from torch import nn


def train(seed):
    torch.manual_seed(seed)
    weight = nn.Parameter(torch.randn(8))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    return int(weight.detach().abs().sum() * 100) % 100


children = []
for seed in range(4):
    child = os.fork()
    if child == 0:
        os._exit(train(seed))
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
