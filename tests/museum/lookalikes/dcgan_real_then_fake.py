"""DCGAN as in the tutorial: errD_real.backward(), errD_fake.backward(), one step."""

import torch
from torch import nn

from museum.parts import mlp

torch.manual_seed(5)
netG, netD = mlp(4, 16, 2), nn.Sequential(mlp(2, 16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
real_label, fake_label = 1.0, 0.0

for _ in range(8):
    netD.zero_grad()
    data = torch.randn(24, 2) + 2
    label = torch.full((24,), real_label)
    errD_real = criterion(netD(data).view(-1), label)
    errD_real.backward()
    fake = netG(torch.randn(24, 4))
    label.fill_(fake_label)
    errD_fake = criterion(netD(fake.detach()).view(-1), label)
    errD_fake.backward()
    optimizerD.step()

    netG.zero_grad()
    label.fill_(real_label)
    errG = criterion(netD(fake).view(-1), label)
    errG.backward()
    optimizerG.step()
