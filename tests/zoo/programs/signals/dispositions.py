"""Prints how every signal is handled, before training and after it."""

import signal

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


def dispositions():
    return {
        number.name: str(signal.getsignal(number))
        for number in sorted(signal.valid_signals())
        if isinstance(number, signal.Signals)
    }


before = dispositions()
train()
print(before)
print(dispositions() == before, signal.set_wakeup_fd(-1), signal.getitimer(signal.ITIMER_REAL))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), model.weight.tolist())
