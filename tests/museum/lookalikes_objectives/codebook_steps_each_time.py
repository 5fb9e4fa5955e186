"""A VQ-VAE with one backward: the codebook steps on each micro-batch, the rest on every fourth."""

import torch
from torch import nn
from torch.nn import functional as F

from museum.parts import mlp

torch.manual_seed(3)
encoder, decoder, codebook = mlp(8, 16, 6), mlp(6, 16, 8), nn.Embedding(10, 6)
optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
codebook_optimizer = torch.optim.SGD(codebook.parameters(), lr=0.1)
K = 4

for i in range(32):
    inputs = torch.randn(12, 8)
    latents = encoder(inputs)
    codes = codebook(torch.cdist(latents.detach(), codebook.weight.detach()).argmin(1))
    passed = latents + (codes - latents).detach()
    reconstruction = F.mse_loss(decoder(passed), inputs)
    commitment = F.mse_loss(latents, codes.detach())
    loss = (reconstruction + 0.3 * commitment) / K
    loss = loss + F.mse_loss(codes, latents.detach())
    loss.backward()
    codebook_optimizer.step()
    codebook_optimizer.zero_grad()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
