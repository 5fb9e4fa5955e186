"""Scripted code that itself calls backward on a tensor."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")


@torch.jit.script
def gradient(weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    loss = (inputs @ weight).square().mean()
    loss.backward()
    result = weight.grad
    assert result is not None
    return result


torch.manual_seed(0)
weight = nn.Parameter(torch.randn(8, 1))
optimizer = torch.optim.SGD([weight], lr=0.05)
for _ in range(8):
    optimizer.zero_grad()
    print(gradient(weight, torch.randn(4, 8)).norm().item())
    optimizer.step()
print(weight.tolist())
