"""Waits for every other thread that there is, as old tutorials do, and trains on."""

import threading

import torch
from torch import nn

results = {}


def train(number):
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (weight - number).square().sum().backward()
        optimizer.step()
    results[number] = weight.tolist()


train(0)
for number in (1, 2):
    threading.Thread(target=train, args=(number,)).start()
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()
print(results)
