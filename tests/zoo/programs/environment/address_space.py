"""Little address space is left beyond what is mapped after the first step; a too large tensor raises."""

import resource

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


train(2)
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 400 * 2**20,) * 2)
train(5)
for _ in range(3):
    try:
        torch.ones(2**31)
    except RuntimeError as error:
        print(str(error)[:40])
    train(2)
print(model.weight.tolist())
