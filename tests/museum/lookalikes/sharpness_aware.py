"""Sharpness-aware minimisation: climb, look from there, come back, step."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(2)
model = mlp(8, 16, 4)
base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
rho = 0.05

for _ in range(8):
    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
    cross_entropy(model(x), y).backward()
    with torch.no_grad():
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
        climbs = [rho * g / (norm + 1e-12) for g in gradients]
        for p, climb in zip(model.parameters(), climbs, strict=True):
            p.add_(climb)
    base.zero_grad()
    cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, climb in zip(model.parameters(), climbs, strict=True):
            p.sub_(climb)
    base.step()
    base.zero_grad()
