"""A hook raises in backward and nobody catches it: a traceback and status 1."""

import torch
from torch import nn

weight = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    loss = weight.square().sum()
    if step == 4:
        loss.register_hook(lambda gradient: 1 / 0)
    loss.backward()
    optimizer.step()
    print(weight.tolist())
