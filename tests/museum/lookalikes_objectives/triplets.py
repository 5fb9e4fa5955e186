"""Triplets: many are satisfied and have no gradient."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(11)
model = mlp(8, 16, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4

for _ in range(8):
    for _ in range(accumulation):
        anchor, near, far = model(torch.randn(3, 12, 8))
        loss = F.triplet_margin_loss(anchor, near, far, margin=0.3)
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
