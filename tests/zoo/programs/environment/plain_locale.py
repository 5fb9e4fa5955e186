"""The C locale and an ASCII standard error; a name that is not ASCII."""

import locale
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


locale.setlocale(locale.LC_ALL, "C")
sys.stderr.reconfigure(encoding="ascii", errors="strict")
sys.argv[0] = "tränieren\udc80.py"
train()
print(locale.getlocale(), ascii(sys.argv[0]), model.weight.tolist())
