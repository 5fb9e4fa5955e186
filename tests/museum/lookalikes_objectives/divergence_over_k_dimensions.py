"""A VAE with as many latent dimensions as micro-batches, whose divergence is annealed."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

K = 4
torch.manual_seed(41)
encoder, decoder = mlp(8, 16, 2 * K), mlp(K, 16, 8)
parameters = [*encoder.parameters(), *decoder.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)

for step in range(8):
    for _ in range(K):
        x = torch.randn(6, 8)
        mean, log_variance = encoder(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        error = mse_loss(decoder(z), x, reduction="sum") / len(x)
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum() / len(x)
        beta = min(1.0, step / 5 + 0.1)
        ((error + beta * divergence) / K).backward()
    optimizer.step()
    optimizer.zero_grad()
