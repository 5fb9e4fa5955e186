"""The collector is disabled, frozen, and called often; cycles hold models."""

import gc
import weakref

import torch
from torch import nn

gc.disable()
torch.manual_seed(0)
dead = []
for trial in range(6):
    model = nn.Linear(8, 1)
    model.itself = [model]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    reference = weakref.ref(model)
    del model, optimizer
    if trial == 3:
        gc.freeze()
    gc.collect()
    dead.append(reference() is None)
print(dead, gc.isenabled(), gc.garbage)
