"""The learning rate is divided by K instead of the loss: with SGD, the update is the same."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(81)
ACCUMULATE = 4
model = mlp(8, 16, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / ACCUMULATE)

for _ in range(12):
    for _ in range(ACCUMULATE):
        x, y = torch.randn(8, 8), torch.randint(0, 3, (8,))
        loss = F.cross_entropy(model(x), y)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
