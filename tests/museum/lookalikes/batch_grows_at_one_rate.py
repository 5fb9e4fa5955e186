"""YOLO's warm-up of the batch where the learning rate is constant, or moves too slowly to see."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(22)
model = mlp(8, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
warm_up, nominal, last_step = 60, 4, -1

for iteration in range(110):
    accumulate = max(1, round(1 + (nominal - 1) * min(1.0, iteration / warm_up)))
    x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
    (cross_entropy(model(x), y) / accumulate).backward()
    if iteration - last_step >= accumulate:
        optimizer.step()
        optimizer.zero_grad()
        last_step = iteration
