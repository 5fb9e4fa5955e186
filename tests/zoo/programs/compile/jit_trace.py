"""A traced module is trained, and a training step is traced around."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = torch.jit.trace(
    nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.ones(2, 8)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(15):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
print(model.code)
print([parameter.tolist() for parameter in model.parameters()])
