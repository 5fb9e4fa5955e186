"""A VAE: the weight of the divergence is raised in steps, and divided by K in one constant."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
encoder, decoder = nn.Linear(8, 8), nn.Linear(4, 8)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
accumulation = 4

for step in range(12):
    beta = 0.1 * (step // 3 + 1)
    for _ in range(accumulation):
        x = torch.randn(12, 8)
        mean, log_variance = encoder(x).chunk(2, -1)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
        loss = F.mse_loss(decoder(latent), x) / accumulation + beta / accumulation * divergence
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
