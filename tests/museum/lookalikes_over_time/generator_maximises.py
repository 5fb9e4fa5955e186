"""A generator that maximises the loss of its discriminator, each with an optimizer."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from museum.parts import mlp

torch.manual_seed(0)
generator, discriminator = mlp(4, 32, 2), mlp(2, 32, 1)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
zeros, ones = torch.zeros(32, 1), torch.ones(32, 1)

for _ in range(40):
    fake = generator(torch.randn(32, 4))
    real = torch.randn(32, 2) * 0.5 + 1
    loss = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
    of_discriminator.zero_grad()
    loss.backward()
    of_discriminator.step()

    of_generator.zero_grad()
    (-bce(discriminator(fake), zeros)).backward()
    of_generator.step()
