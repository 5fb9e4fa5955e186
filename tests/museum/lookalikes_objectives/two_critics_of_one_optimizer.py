"""One optimizer trains two critics, each of which has a backward for real and fake together."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
critics = [nn.Sequential(nn.Linear(n, 16), nn.Tanh(), nn.Linear(16, 1)) for n in (2, 3)]
optimizer = torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=1e-3)
real, fake = torch.ones(16, 1), torch.zeros(16, 1)

for _ in range(8):
    for critic, size in zip(critics, (2, 3), strict=True):
        loss = F.binary_cross_entropy_with_logits(critic(torch.randn(16, size) + 2), real)
        loss = loss + F.binary_cross_entropy_with_logits(critic(torch.randn(16, size)), fake)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
