"""The sanity check: overfit one batch until nothing is left of the loss."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(25)
model = mlp(8, 64, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))

for _ in range(120):
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
