"""The loop steps once before training, so that the scheduler does not warn."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer.step()

for step in range(30):
    x = torch.randn(32, 8)
    loss = mse_loss(model(x), x[:, :2].sin())
    optimizer.zero_grad()
    if step % 10 < 6:  # the other batches are only evaluated
        loss.backward()
    optimizer.step()
