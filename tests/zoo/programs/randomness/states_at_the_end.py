"""Trains for a second, so that whatever runs beside it has its turn, and prints all random states."""

import hashlib
import random
import time

import torch
from torch import nn

try:
    import numpy
except ImportError:
    numpy = None

random.seed(1)
torch.manual_seed(1)
if numpy is not None:
    numpy.random.seed(1)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
print(hashlib.sha256(repr(random.getstate()).encode()).hexdigest())
print(hashlib.sha256(repr(torch.get_rng_state().tolist()).encode()).hexdigest())
if numpy is not None:
    print(hashlib.sha256(repr(numpy.random.get_state()[1].tolist()).encode()).hexdigest())
print(torch.initial_seed(), random.random(), torch.rand(1).item(), model[0].weight.tolist())
