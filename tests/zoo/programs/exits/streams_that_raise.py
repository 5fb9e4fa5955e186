"""sys.stderr raises whatever is written, also when somebody has something to report."""

import sys
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


class Broken:
    def write(self, text):
        raise OSError("nothing can be written here")

    flush = write


sys.stderr = Broken()
sys.argv = []
train()
value = nn.Parameter(torch.ones(4, dtype=torch.complex64))
odd = torch.optim.SGD([value], lr=0.1)
for _ in range(5):
    odd.zero_grad()
    value.abs().sum().backward()
    odd.step()
with torch.device("meta"):
    ghost = nn.Linear(2, 2)
    haunted = torch.optim.SGD(ghost.parameters(), lr=0.1)
    ghost(torch.ones(1, 2)).sum().backward()
    haunted.step()
time.sleep(0.3)
print(model.weight.tolist(), value.tolist())
sys.stderr = sys.__stderr__
