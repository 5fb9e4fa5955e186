"""A umask that lets nobody read anything, the owner included."""

import os
import stat

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


os.umask(0o777)
train()
torch.save(model.weight.detach(), "weights.pt")
print(oct(stat.S_IMODE(os.stat("weights.pt").st_mode)), oct(os.umask(0o022)))
print(model.weight.tolist())
