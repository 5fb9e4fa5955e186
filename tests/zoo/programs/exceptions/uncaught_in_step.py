"""An optimizer raises in step and nobody catches it: a traceback and status 1."""

import torch
from torch import nn

weight = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    weight.square().sum().backward()
    if step == 4:
        weight.grad = None
        optimizer.param_groups[0]["lr"] = "a tenth"
        weight.grad = torch.ones(4)
    optimizer.step()
    print(weight.tolist())
