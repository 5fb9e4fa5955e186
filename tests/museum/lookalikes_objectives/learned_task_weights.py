"""Two losses, weighted by learned uncertainties."""

import torch
import torch.nn.functional as F
from torch import nn

from museum.parts import mlp

torch.manual_seed(8)
model = mlp(8, 16, 6)
uncertainties = nn.Parameter(torch.zeros(2))
optimizer = torch.optim.AdamW([*model.parameters(), uncertainties], lr=1e-2)

for _ in range(8):
    for _ in range(4):
        x, y, z = torch.randn(12, 8), torch.randint(0, 5, (12,)), torch.randn(12)
        outputs = model(x)
        losses = F.cross_entropy(outputs[:, :5], y), F.mse_loss(outputs[:, 5], z)
        loss = sum((-s).exp() * each + s for each, s in zip(losses, uncertainties, strict=True))
        (loss / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
