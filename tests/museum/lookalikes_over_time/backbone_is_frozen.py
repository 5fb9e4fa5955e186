"""The optimizer holds all parameters, and most of them are frozen at first."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
backbone, head = mlp(8, 16, 16), mlp(16, 2)
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.05)
backbone.requires_grad_(False)

for step in range(40):
    if step == 30:
        backbone.requires_grad_(True)
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    mse_loss(head(backbone(x)), x[:, :2].sin()).backward()
    optimizer.step()
