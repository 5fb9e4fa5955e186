"""Two phases, each with a schedule of its own that is planned and stepped in batches."""

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR

from museum.parts import mlp

torch.manual_seed(39)
model = mlp(8, 16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
K = 4

for batches in (12, 48):
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = 3e-3
    schedule = CosineAnnealingLR(optimizer, batches)
    for number in range(batches):
        x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
        (cross_entropy(model(x), y) / K).backward()
        if number % K == K - 1:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
