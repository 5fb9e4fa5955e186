"""A diffusion model: the noise level of a batch, and its loss, vary by orders of magnitude."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(9, 64, 8)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)

for _ in range(300):
    clean, noise = torch.randn(4, 8) * torch.arange(1.0, 9), torch.randn(4, 8)
    level = torch.rand(1).expand(4, 1) ** 3  # one level for the batch
    optimizer.zero_grad()
    guess = model(torch.cat([clean + 10 * level * noise, level], -1))
    weight = 1 / (0.01 + level.mean())
    (weight * mse_loss(guess, noise)).backward()
    optimizer.step()
