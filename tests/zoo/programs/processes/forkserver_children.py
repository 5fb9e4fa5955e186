"""Two children of a fork server that has loaded torch."""

import multiprocessing

import torch
from torch import nn


def train(seed, results):
    generator = torch.Generator().manual_seed(seed)
    weight = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([weight], lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        (weight - torch.randn(8, generator=generator)).square().sum().backward()
        optimizer.step()
    results.put((seed, weight.tolist()))


if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    results = context.Queue()
    children = [context.Process(target=train, args=(seed, results)) for seed in range(2)]
    for child in children:
        child.start()
    print(sorted(results.get() for _ in children))
    for child in children:
        child.join()
    print([child.exitcode for child in children])
