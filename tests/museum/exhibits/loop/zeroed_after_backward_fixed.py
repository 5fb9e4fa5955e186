"""Three lines in the right order: zero_grad, backward, step."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(2)
model = mlp(8, 16, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = [[(torch.randn(12, 8), torch.randint(0, 3, (12,)))] for _ in range(6)]

for [(x, y)] in windows:
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
