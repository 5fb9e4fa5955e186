"""concurrent.futures' process pool on fork, with a worker that raises."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn


def train(seed):
    weight = nn.Parameter(torch.full((4,), float(seed)))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(10):
        if seed == 2 and step == 5:
            raise ValueError("trial 2 diverged")
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    return weight.tolist()


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for future in [pool.submit(train, seed) for seed in range(4)]:
            try:
                print(future.result())
            except ValueError as error:
                print("failed:", error)
