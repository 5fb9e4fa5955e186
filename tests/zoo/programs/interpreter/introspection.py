"""Signatures, names and sources of what training calls, as frameworks read them."""

import inspect

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


train()
for function in (
    torch.autograd.backward,
    torch.Tensor.backward,
    torch.optim.Optimizer.__init__,
    torch.optim.SGD.__init__,
    torch.optim.Adam.step,
    nn.utils.clip_grad_norm_,
    nn.functional.cross_entropy,
    nn.functional.mse_loss,
    nn.Module.__call__,
    torch.amp.GradScaler.step,
    torch.optim.lr_scheduler.LRScheduler.step,
    torch.utils.data.DataLoader.__iter__,
):
    print(function.__module__, function.__qualname__, inspect.signature(function))
    print(inspect.unwrap(function).__code__.co_name, inspect.isfunction(function))
print(model.weight.tolist())
