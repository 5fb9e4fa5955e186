"""Prints what the engine decides about gradients: versions, strides, aliasing, grad_fn."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
extra = nn.Parameter(torch.randn(4, 6).t())
optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.01)
for step in range(6):
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    outputs = model(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))
    loss = outputs.square().mean() + (extra * torch.arange(6.0)[:, None]).sum()
    loss.backward()
    for parameter in [*model.parameters(), extra]:
        gradient = parameter.grad
        print(gradient.stride(), gradient._version, parameter._version, gradient.grad_fn)
    print(loss._version, loss.grad_fn.name(), loss.is_leaf)
    optimizer.step()
