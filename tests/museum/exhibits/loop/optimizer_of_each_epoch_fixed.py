"""The optimizer is created once."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

EPOCHS, BATCHES = 8, 6
torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for _ in range(EPOCHS):
    for _ in range(BATCHES):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        mse_loss(model(x), x[:, :2].sin()).backward()
        optimizer.step()
