"""Class weights of a rare class; each micro-batch divides by its own sum of weights."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(64)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = []
class_weights = torch.tensor([0.2, 1.0, 1.0, 1.0, 8.0])

for _ in range(6):
    window = [(torch.randn(n, 8), torch.randint(0, 5, (n,))) for n in (6, 12, 9, 3)]
    for inputs, labels in window:
        loss = F.cross_entropy(model(inputs), labels, class_weights) / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
