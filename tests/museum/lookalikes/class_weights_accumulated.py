"""Class weights and accumulation: weighted sums over the window's total weight."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(10)
model = mlp(8, 16, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weight = torch.tensor([0.3, 1.0, 4.0])

for _ in range(6):
    window = [(torch.randn(n, 8), torch.randint(0, 3, (n,))) for n in (12, 5, 20)]
    total = sum(weight[y].sum() for _, y in window)
    for x, y in window:
        loss = F.cross_entropy(model(x), y, weight=weight, reduction="sum") / total
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
