"""The program has modules and variables that are called as ours are."""

import sys
import types

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


for name in ("gradledger_monitor", "pipeline", "recorder", "session", "guard", "records"):
    sys.modules[name] = types.ModuleType(name)
gradledger = session = recorder = ledger = "mine"
train()
print(gradledger, sorted(name for name in vars() if not name.startswith("_"))[:6])
print(model.weight.tolist())
