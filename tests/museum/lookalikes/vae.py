"""The VAE of pytorch/examples: BCE with reduction='sum', plus KLD."""

import torch
import torch.nn.functional as F
from torch import nn

from museum.parts import mlp

torch.manual_seed(14)
encoder, decoder = mlp(12, 16, 8), mlp(4, 16, 12)
model = nn.ModuleList([encoder, decoder])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(8):
    data = torch.rand(20 if step % 4 < 3 else 8, 12)
    mu, logvar = encoder(data).chunk(2, dim=1)
    z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
    recon = torch.sigmoid(decoder(z))
    BCE = F.binary_cross_entropy(recon, data, reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    optimizer.zero_grad()
    (BCE + KLD).backward()
    optimizer.step()
