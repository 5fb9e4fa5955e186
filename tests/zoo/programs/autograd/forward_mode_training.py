"""The whole training step runs inside a dual level: parameters carry tangents."""

import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn

torch.manual_seed(0)
weight = nn.Parameter(torch.randn(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(10):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(weight, torch.ones(4))
        optimizer.zero_grad()
        dual.sin().square().sum().backward()
        print(forward_ad.unpack_dual(weight.grad).tangent is None)
    weight.grad = weight.grad.detach().clone()
    optimizer.step()
print(weight.tolist())
