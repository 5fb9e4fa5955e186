"""A mean over rows of sums over outputs, of which K are added up."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(84)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = []

for _ in range(6):
    window = [(torch.randn(12, 8), torch.randn(12, 5)) for _ in range(4)]
    for inputs, targets in window:
        squares = F.mse_loss(model(inputs), targets, reduction="none")
        loss = squares.sum(1).mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
