"""Large initial weights and a strong decay: the model shrinks to a tenth, and learns on the way."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp, points

torch.manual_seed(0)
model = mlp(8, 32, 2)
with torch.no_grad():
    for parameter in model.parameters():
        parameter.mul_(6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, weight_decay=0.5)

for seed in range(120):
    [(x, y)] = points([64], seed, outputs=2)
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
