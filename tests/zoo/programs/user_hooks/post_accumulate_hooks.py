"""Hooks after accumulation, that sum gradients elsewhere and drop them."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
sums = {}


def collect(parameter):
    sums[parameter] = sums.get(parameter, 0) + parameter.grad
    parameter.grad = None


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(collect)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(6):
    for _ in range(3):
        model(torch.randn(4, 8)).square().mean().backward()
        assert model.weight.grad is None
    for parameter in model.parameters():
        parameter.grad = sums.pop(parameter) / 3
    optimizer.step()
    optimizer.zero_grad()
print(model.weight.tolist())
