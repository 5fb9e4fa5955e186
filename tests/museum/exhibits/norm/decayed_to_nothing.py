"""The loop decays the weights by a tenth a step: they go to zero, and the gradients with them."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from museum.parts import points

torch.manual_seed(0)
layers = [nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 16, bias=False), nn.Tanh()]
model = nn.Sequential(*layers, nn.Linear(16, 2, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for seed in range(150):
    [(x, y)] = points([64], seed, outputs=2)
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 - 0.05 * 2.0)
