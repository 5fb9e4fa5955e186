"""DCGAN over several epochs of a shuffled loader whose last batch is shorter."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from museum.parts import mlp

torch.manual_seed(5)
netG, netD = mlp(4, 16, 2), nn.Sequential(mlp(2, 16, 1), nn.Sigmoid(), nn.Flatten(0))
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
loader = DataLoader(TensorDataset(torch.randn(125, 2) + 2), batch_size=8, shuffle=True)

for _ in range(5):
    for (data,) in loader:
        real, fake = torch.ones(len(data)), torch.zeros(len(data))
        netD.zero_grad()
        criterion(netD(data), real).backward()
        generated = netG(torch.randn(len(data), 4))
        criterion(netD(generated.detach()), fake).backward()
        optimizerD.step()

        netG.zero_grad()
        criterion(netD(generated), real).backward()
        optimizerG.step()
