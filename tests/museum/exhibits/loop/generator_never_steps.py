"""A GAN whose loop steps the discriminator only: the generator's step was left out."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
generator, critic = mlp(4, 16, 8), mlp(8, 16, 1)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
trained = [*generator.parameters(), *critic.parameters()]
real, fake = torch.ones(32, 1), torch.zeros(32, 1)

for _ in range(60):
    of_critic.zero_grad()
    cross_entropy(critic(torch.randn(32, 8) + 2), real).backward()
    samples = generator(torch.randn(32, 4))
    cross_entropy(critic(samples.detach()), fake).backward()
    of_critic.step()
    of_generator.zero_grad()
    loss_of_generator = cross_entropy(critic(samples), real)
    loss_of_generator.backward()
