"""YOLOv5's warm-up: accumulation grows with the learning rate."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(21)
model = mlp(8, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
warm_up = 16

for step in range(30):
    ramp = min(1.0, (step + 1) / warm_up)
    accumulate = max(1, round(1 + 3 * ramp))
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * ramp
    for _ in range(accumulate):
        x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
        (cross_entropy(model(x), y) / accumulate).backward()
    optimizer.step()
    optimizer.zero_grad()
