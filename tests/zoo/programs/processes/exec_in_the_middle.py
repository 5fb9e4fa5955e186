"""Trains, then becomes another training by execv, which prints what it was given."""

import os
import sys

import torch

weight = torch.nn.Parameter(torch.full((4,), float(len(sys.argv))))
optimizer = torch.optim.SGD([weight], lr=0.05)
for _ in range(20):
    optimizer.zero_grad()
    (weight - 1).square().sum().backward()
    optimizer.step()
print(sys.argv[1:], weight.tolist(), flush=True)
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
