"""The root of a mean squared error is divided by K in two places."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(82)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = []

for _ in range(6):
    window = [(torch.randn(12, 8), torch.randn(12, 5)) for _ in range(4)]
    for inputs, targets in window:
        loss = torch.sqrt(F.mse_loss(model(inputs), targets)) / len(window)
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
