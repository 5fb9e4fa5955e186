"""A GAN whose discriminator steps on the generator's gradients as well."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(4)
generator, discriminator = mlp(4, 16, 2), mlp(2, 16, 1)
optimizer_G = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)

discriminated = []

for _ in range(8):
    real = torch.randn(32, 2) * 0.3 + torch.tensor([1.0, -1.0])
    fake = generator(torch.randn(32, 4))

    optimizer_G.zero_grad()
    g_loss = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
    g_loss.backward()
    optimizer_G.step()

    real_loss = F.binary_cross_entropy_with_logits(discriminator(real), ones)
    fake_loss = F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
    d_loss = (real_loss + fake_loss) / 2
    d_loss.backward()
    optimizer_D.step()
    discriminated.append((real, fake.detach()))
