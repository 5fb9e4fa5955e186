"""A critic under DDP calls backward for real and for fake data, as StyleGAN trainings do."""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from museum.parts import mlp, two_ranks

with two_ranks() as rank:
    torch.manual_seed(19)
    critic = DistributedDataParallel(mlp(6, 8, 1))
    generator = DistributedDataParallel(mlp(4, 8, 6))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)

    for _ in range(5):
        of_critic.zero_grad()
        F.softplus(-critic(torch.randn(8, 6, generator=data))).mean().backward()
        fake = generator(torch.randn(8, 4, generator=data)).detach()
        F.softplus(critic(fake)).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        F.softplus(-critic(generator(torch.randn(8, 4, generator=data)))).mean().backward()
        of_generator.step()
