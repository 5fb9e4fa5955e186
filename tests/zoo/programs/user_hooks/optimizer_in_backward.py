"""One optimizer for each parameter, that steps as soon as its gradient is there."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizers = {parameter: torch.optim.Adam([parameter], lr=0.01) for parameter in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(30):
    model(torch.randn(4, 8)).square().mean().backward()
print(all(parameter.grad is None for parameter in model.parameters()))
print([parameter.tolist() for parameter in model.parameters()])
