"""A GAN that accumulates: K micro-batches for the discriminator, K for the generator."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

K = 4
torch.manual_seed(4)
G, D = mlp(4, 16, 2), mlp(2, 16, 1)
opt_G = torch.optim.AdamW(G.parameters(), lr=1e-3)
opt_D = torch.optim.AdamW(D.parameters(), lr=1e-3)


def hinge(score: torch.Tensor, sign: float) -> torch.Tensor:
    return F.relu(1 - sign * score).mean()


for _ in range(6):
    opt_D.zero_grad()
    for _ in range(K):
        real, fake = torch.randn(16, 2), G(torch.randn(16, 4)).detach()
        ((hinge(D(real), 1) + hinge(D(fake), -1)) / K).backward()
    opt_D.step()

    opt_G.zero_grad()
    for _ in range(K):
        (-D(G(torch.randn(16, 4))).mean() / K).backward()
    opt_G.step()
