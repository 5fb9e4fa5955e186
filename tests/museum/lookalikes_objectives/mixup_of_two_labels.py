"""Mixup: two cross entropies on one head, weighted by a random share."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(7)
model = mlp(8, 16, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4

for _ in range(8):
    for _ in range(accumulation):
        x, y = torch.randn(12, 8), torch.randint(0, 5, (12,))
        share, order = torch.distributions.Beta(1.0, 1.0).sample(), torch.randperm(12)
        logits = model(share * x + (1 - share) * x[order])
        loss = share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[order])
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
