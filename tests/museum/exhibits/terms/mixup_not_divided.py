"""Two labels for each input, with random shares, and no division by K."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(86)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = []

for _ in range(6):
    window = [
        (torch.randn(12, 8), torch.randint(0, 5, (2, 12)), float(torch.rand(()))) for _ in range(4)
    ]
    for inputs, (first, second), share in window:
        logits = model(inputs)
        loss = share * F.cross_entropy(logits, first)
        loss = loss + (1 - share) * F.cross_entropy(logits, second)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
