"""Writes to a pipe that nobody reads, and catches the error."""

import os

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


reader, writer = os.pipe()
os.close(reader)
train()
try:
    os.write(writer, b"gone")
except BrokenPipeError as error:
    print(error)
print(model.weight.tolist())
