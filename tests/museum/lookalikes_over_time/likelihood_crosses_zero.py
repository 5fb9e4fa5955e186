"""The negative logarithm of a density falls below zero as the fit improves."""

import torch
from torch.nn.functional import gaussian_nll_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 32, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for _ in range(200):
    x = torch.randn(32, 8)
    mean, log_variance = model(x).unbind(-1)
    optimizer.zero_grad()
    gaussian_nll_loss(mean, 0.1 * x[:, 0], log_variance.exp()).backward()
    optimizer.step()
