"""A weight decay that leaves the weights where the loss wants them."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from museum.parts import points

torch.manual_seed(0)
layers = [nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 16, bias=False), nn.Tanh()]
model = nn.Sequential(*layers, nn.Linear(16, 2, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-3)
losses = []

for seed in range(150):
    [(x, y)] = points([64], seed, outputs=2)
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
