"""Slurm's SIGUSR1 requests a checkpoint, SIGUSR2 is waited for in a thread."""

import os
import signal
import threading

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


signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
waited = []
thread = threading.Thread(target=lambda: waited.append(signal.sigwait([signal.SIGUSR2]).name))
thread.start()
requests = []
signal.signal(signal.SIGUSR1, lambda number, frame: requests.append(number))
for step in range(20):
    train(1)
    if step % 5 == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR2)
thread.join()
print(requests, waited, model.weight.tolist())
