"""The weight of the divergence rises from 0 to 1, and the loss with it."""

import torch

from museum.parts import mlp

torch.manual_seed(0)
encoder, decoder = mlp(8, 32, 8), mlp(4, 32, 8)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.005)

for step in range(300):
    x = torch.randn(32, 4) @ torch.ones(4, 8)
    mean, spread = encoder(x).chunk(2, -1)
    code = mean + (spread / 2).exp() * torch.randn_like(mean)
    error = (decoder(code) - x).square().mean()
    divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(-1).mean()
    optimizer.zero_grad()
    (error + min(1.0, step / 200) * divergence).backward()
    optimizer.step()
