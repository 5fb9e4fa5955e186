"""Sockets are forbidden, as test suites do it, and every attempt is counted for this thread."""

import socket
import threading
import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(steps=10):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


attempts = []


class Forbidden(socket.socket):
    def __init__(self, *args, **kwargs):
        if threading.current_thread() is threading.main_thread():
            attempts.append("main thread")
        raise RuntimeError("this program may not use the network")


socket.socket = Forbidden
train()
time.sleep(0.3)
train()
print(attempts, model.weight.tolist())
