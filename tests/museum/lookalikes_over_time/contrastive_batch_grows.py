"""The batch of a contrastive loss doubles in stages: with more pairs, its loss is higher."""

import torch
from torch.nn.functional import cross_entropy, normalize

from museum.parts import mlp

STAGES, STEPS = 4, 60

torch.manual_seed(0)
model = mlp(16, 64, 16)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(STAGES * STEPS):
    size = 8 * 2 ** (step // STEPS)
    x = torch.randn(size, 16)
    first = normalize(model(x), dim=1)
    second = normalize(model(x + 0.1 * torch.randn(size, 16)), dim=1)
    optimizer.zero_grad()
    cross_entropy(first @ second.T / 0.1, torch.arange(size)).backward()
    optimizer.step()
