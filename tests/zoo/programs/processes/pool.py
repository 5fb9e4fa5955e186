"""A pool of forked workers runs trials, after the parent has trained."""

import multiprocessing

import torch
from torch import nn


def train(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = nn.Parameter(torch.zeros(16))
    optimizer = torch.optim.SGD([weight], lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        (weight - torch.randn(16, generator=generator)).square().sum().backward()
        optimizer.step()
    return weight.tolist()


if __name__ == "__main__":
    print(train(99))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(train, range(6)))
    print(train(98))
