"""Threads with the smallest stack that the program can use."""

import threading

import torch
from torch import nn

threading.stack_size(256 * 1024)
results = {}


def train(number):
    weight = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        (torch.full((8,), float(step + number)) - weight).square().sum().backward()
        optimizer.step()
    results[number] = weight.tolist()


for number in range(3):
    thread = threading.Thread(target=train, args=(number,))
    thread.start()
    thread.join()
print(results)
