"""A strong decay for AdamW is given to Adam, which adds it to the gradient before it is scaled."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 32, 32, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.3)
losses = []

for _ in range(200):
    x = torch.randn(256, 8)
    optimizer.zero_grad()
    loss = mse_loss(model(x), x[:, :2] * x[:, 2:4].sign())
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
