"""A search of 120 trials; each trial's model must go before the next begins."""

import resource

import torch
from torch import nn


def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


torch.manual_seed(0)
best, after = float("inf"), {}
for trial in range(120):
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=10 ** -(1 + trial % 4))
    for _ in range(3):
        inputs = torch.randn(8, 64)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
    best = min(best, loss.item())
    after[trial] = resident_mib()
print(best, "memory is flat:", after[119] - after[29] < 4)
