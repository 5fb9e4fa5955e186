"""The working directory is deleted before training begins."""

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


folder = os.getcwd()
os.rmdir(folder)
train()
try:
    os.getcwd()
except FileNotFoundError as error:
    print(error.strerror)
os.mkdir(folder)
print(model.weight.tolist())
