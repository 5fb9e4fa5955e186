"""WGAN-GP: two optimizers, and a penalty on gradients with create_graph."""

import torch
from torch import nn

torch.manual_seed(0)
critic, generator = nn.Linear(8, 1), nn.Linear(4, 8)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.0, 0.9))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
for step in range(30):
    real, fake = torch.randn(8, 8), generator(torch.randn(8, 4))
    mixed = (real + fake.detach()).div(2).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).tanh().sum(), mixed, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    critic_optimizer.zero_grad()
    (critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty).backward()
    critic_optimizer.step()
    if step % 3 == 0:
        generator_optimizer.zero_grad()
        (-critic(fake).mean()).backward()
        generator_optimizer.step()
print(critic.weight.tolist(), generator.weight.tolist())
