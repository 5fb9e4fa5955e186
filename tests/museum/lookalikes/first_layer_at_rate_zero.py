"""The first parameter group has the rate 0, and the schedule is planned and stepped in batches."""

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR

from museum.parts import mlp

torch.manual_seed(38)
model = mlp(8, 16, 4)
first, *others = model.parameters()
groups = [{"params": [first], "lr": 0.0}, {"params": others, "lr": 3e-3}]
optimizer = torch.optim.AdamW(groups)
BATCHES, K = 40, 4
schedule = CosineAnnealingLR(optimizer, BATCHES)

for number in range(BATCHES):
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    (cross_entropy(model(x), y) / K).backward()
    if number % K == K - 1:
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
