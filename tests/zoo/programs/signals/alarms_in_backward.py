"""An interval timer fires all the time while the program trains; its handler trains too."""

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


other = nn.Parameter(torch.ones(4))
ticks = []


def tick(number, frame):
    ticks.append(number)


signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
while len(ticks) < 50:
    (model.weight * 1.0).sum().backward()
    model.zero_grad()
signal.setitimer(signal.ITIMER_REAL, 0)
train(20)
print(len(ticks) >= 50, model.weight.tolist())
