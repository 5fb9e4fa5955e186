"""The head of a second task has an optimizer, and its loss is never added."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model, second = mlp(8, 16, 2), mlp(8, 16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
of_second = torch.optim.SGD(second.parameters(), lr=0.1)

for _ in range(60):
    x = torch.randn(32, 8)
    loss = mse_loss(model(x), x[:, :2].sin())
    with torch.no_grad():
        loss_of_second = mse_loss(second(x), x[:, :1].cos())
    optimizer.zero_grad()
    of_second.zero_grad()
    (loss + loss_of_second).backward()
    optimizer.step()
    of_second.step()
