"""One batch in a hundred has targets in another unit: loss and norm jump with it."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp, points

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [points([32], seed, outputs=2)[0] for seed in range(100)]
batches[80] = (batches[80][0], batches[80][1] * 100)

for x, y in batches:
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
