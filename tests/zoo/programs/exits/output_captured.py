"""Standard error is redirected into a string; whatever is in it is printed but for one kind of line."""

import contextlib
import io
import time

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


captured = io.StringIO()
with contextlib.redirect_stderr(captured):
    train()
    time.sleep(0.3)
print([line for line in captured.getvalue().splitlines() if not line.startswith("gradledger:")])
print(model.weight.tolist())
