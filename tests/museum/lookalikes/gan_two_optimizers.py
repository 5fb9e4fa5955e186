"""A GAN: one step of the discriminator, one of the generator."""

import torch
from torch import nn

from museum.parts import mlp

torch.manual_seed(3)
generator, discriminator = mlp(4, 16, 2), mlp(2, 16, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
valid, fake = torch.ones(32, 1), torch.zeros(32, 1)

for _ in range(8):
    images = 0.2 * torch.randn(32, 2) + 1

    opt_g.zero_grad()
    made = generator(torch.randn(32, 4))
    g_loss = criterion(discriminator(made), valid)
    g_loss.backward()
    opt_g.step()

    opt_d.zero_grad()
    d_loss = 0.5 * (
        criterion(discriminator(images), valid) + criterion(discriminator(made.detach()), fake)
    )
    d_loss.backward()
    opt_d.step()
