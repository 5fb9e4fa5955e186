"""A critic calls backward for real and for fake samples, each divided by the accumulation."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
real, fake = torch.ones(16, 1), torch.zeros(16, 1)
K = 4

for _ in range(8):
    for _ in range(K):
        for samples, answer in ((torch.randn(16, 2) + 2, real), (torch.randn(16, 2), fake)):
            (F.binary_cross_entropy_with_logits(critic(samples), answer) / K).backward()
    optimizer.step()
    optimizer.zero_grad()
