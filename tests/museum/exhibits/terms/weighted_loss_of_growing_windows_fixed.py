"""Each window is divided by its length."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(87)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = []

for length in (2, 2, 4, 4, 8, 8):
    window = [(torch.randn(12, 8), torch.randn(12, 5)) for _ in range(length)]
    for inputs, targets in window:
        loss = 0.7 * F.mse_loss(model(inputs), targets)
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
