"""A sum over batches of one size, a step for each, at a learning rate chosen for the sum."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(82)
model = mlp(8, 16, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.002)

for _ in range(12):
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y, reduction="sum")
    loss.backward()
    optimizer.step()
