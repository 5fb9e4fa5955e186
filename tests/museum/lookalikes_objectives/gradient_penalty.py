"""A critic with a gradient penalty: a mean of two signs and a squared norm of gradients."""

import torch

from museum.parts import mlp

torch.manual_seed(10)
critic = mlp(6, 16, 1)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))

for _ in range(8):
    for _ in range(2):
        real, fake = torch.randn(16, 6) + 1, torch.randn(16, 6)
        share = torch.rand(16, 1)
        mixed = (share * real + (1 - share) * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = ((gradient.norm(dim=1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        (loss / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
