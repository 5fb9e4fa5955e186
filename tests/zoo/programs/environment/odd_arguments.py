"""sys.argv is empty, and its first entry no text."""

import sys

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


sys.argv = []
train(5)
sys.argv = [None, 3]
train(5)
print(sys.argv, model.weight.tolist())
