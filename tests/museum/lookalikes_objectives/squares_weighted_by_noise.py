"""A diffusion model: squared errors weighted by the noise, the sum divided by all samples."""

import torch

from museum.parts import mlp

torch.manual_seed(11)
ACCUMULATE, BATCH = 4, 3
model = mlp(10, 16, 10)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in range(8):
    for _ in range(ACCUMULATE):
        clean = torch.randn(BATCH, 10)
        noise = torch.exp(1.2 * torch.randn(BATCH, 1) - 1.2)
        weights = (noise**2 + 0.25) / (0.5 * noise) ** 2
        errors = weights * (model(clean + noise * torch.randn_like(clean)) - clean) ** 2
        errors.sum().mul(1 / (ACCUMULATE * BATCH)).backward()
    optimizer.step()
    optimizer.zero_grad()
