"""Warnings that are attributed to this program's own file are errors."""

import warnings

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


warnings.filterwarnings("error", module="__main__")
warnings.filterwarnings("ignore", category=UserWarning, module="torch")
caught = []
for _ in range(4):
    optimizer.zero_grad()
    try:
        nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4)).backward()
    except UserWarning as error:
        caught.append(str(error)[:40])
    train(1)
print(caught, model.weight.tolist())
