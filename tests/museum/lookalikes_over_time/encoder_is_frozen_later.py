"""The encoder is frozen in mid-run, and the optimizer still holds it."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

STEPS, FROZEN = 160, 40

torch.manual_seed(0)
encoder, head = mlp(8, 16, 16), mlp(16, 16, 4)
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=0.01)

for step in range(STEPS):
    x = torch.randn(32, 8)
    y = x[:, :4].argmax(1)
    optimizer.zero_grad()
    if step == FROZEN:
        encoder.requires_grad_(False)
    features = encoder(x)
    cross_entropy(head(features), y).backward()
    optimizer.step()
