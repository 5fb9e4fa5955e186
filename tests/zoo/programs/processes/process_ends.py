"""multiprocessing's processes on fork: one returns, one raises SystemExit, one is terminated."""

import multiprocessing
import sys
import time

import torch
from torch import nn


def train():
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        (weight - 1).square().sum().backward()
        optimizer.step()


def returns(ready):
    train()
    ready.set()


def leaves(ready):
    train()
    ready.set()
    sys.exit(4)


def stays(ready):
    train()
    ready.set()
    time.sleep(60)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    train()
    for target in (returns, leaves, stays):
        ready = context.Event()
        process = context.Process(target=target, args=(ready,))
        process.start()
        ready.wait()
        if target is stays:
            process.terminate()
        began = time.monotonic()
        process.join()
        print(target.__name__, process.exitcode, time.monotonic() - began < 1.5)
