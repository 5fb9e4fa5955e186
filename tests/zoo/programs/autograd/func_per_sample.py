"""Gradients of each sample by vmap of grad, clipped as DP-SGD does, and an optimizer's step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def loss(values, sample):
    output = torch.func.functional_call(model, values, (sample.unsqueeze(0),))
    return (output - sample.sum()).square().mean()


per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
for _ in range(20):
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradients = per_sample(values, torch.randn(6, 8))
    for name, parameter in model.named_parameters():
        norms = gradients[name].flatten(1).norm(dim=1).clamp(min=1)
        parameter.grad = (gradients[name].flatten(1) / norms[:, None]).mean(0).view_as(parameter)
    optimizer.step()
print(model.weight.tolist())
