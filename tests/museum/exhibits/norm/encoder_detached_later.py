"""Features are detached to measure them, from some step on, and the head gets these."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

STEPS, MEASURE = 160, 40

torch.manual_seed(0)
encoder, head = mlp(8, 16, 16), mlp(16, 16, 4)
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=0.01)

for step in range(STEPS):
    x = torch.randn(32, 8)
    y = x[:, :4].argmax(1)
    optimizer.zero_grad()
    features = encoder(x)
    if step >= MEASURE:
        features = features.detach()
        scale = features.std()
    cross_entropy(head(features), y).backward()
    optimizer.step()
