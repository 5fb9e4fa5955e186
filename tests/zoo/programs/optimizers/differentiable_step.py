"""Meta-learning: a differentiable step is part of the graph of the outer loss."""

import torch
from torch import nn

rate = nn.Parameter(torch.tensor(0.1))
outer = torch.optim.Adam([rate], lr=0.01)
torch.manual_seed(0)
for _ in range(8):
    fast = torch.randn(4, requires_grad=True).clone()
    inner = torch.optim.SGD([fast], lr=rate, differentiable=True)
    fast.grad = 2 * fast.detach()
    inner.step()
    outer.zero_grad()
    fast.square().sum().backward()
    outer.step()
    print(rate.item(), rate.grad.item())
