"""The count of a masked mean is at least 1."""

import torch

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for step in range(12):
    x, y = torch.randn(16, 8), torch.randn(16, 2)
    mask = torch.rand(16) < 0.5
    if step == 7:
        mask[:] = False
    optimizer.zero_grad()
    error = (model(x) - y).square().mean(-1)
    loss = (error * mask).sum() / mask.sum().clamp(min=1)
    loss.backward()
    optimizer.step()
