"""A smooth hinge: its scale multiplies the outputs, and divides the loss."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(1)
model = mlp(8, 16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
accumulation, scale = 5, 7.5

for _ in range(8):
    for _ in range(accumulation):
        x = torch.randn(12, 8)
        sign = x[:, :1].sign()
        loss = F.softplus(-scale * sign * model(x)).mean() / scale
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
