"""A critic of two means, and at every second step a penalty on its gradient, with a weight."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

K, EVERY = 4, 2
torch.manual_seed(9)
critic, generator = mlp(6, 16, 1), mlp(3, 16, 6)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.99))

for step in range(8):
    for _ in range(K):
        real, fake = torch.randn(8, 6), generator(torch.randn(8, 3)).detach()
        loss = F.softplus(critic(fake)).mean() + F.softplus(-critic(real)).mean()
        (loss / K).backward()
    for _ in range(K if step % EVERY == 0 else 0):
        real = torch.randn(8, 6, requires_grad=True)
        (grad,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
        penalty = grad.square().sum(1).mean()
        (5.0 * penalty * EVERY / K).backward()
    optimizer.step()
    optimizer.zero_grad()
