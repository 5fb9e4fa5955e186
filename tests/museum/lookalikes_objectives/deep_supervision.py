"""Three heads at three depths, with falling weights, on the same labels."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)
layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)])
heads = nn.ModuleList(nn.Linear(16, 5) for _ in range(3))
optimizer = torch.optim.AdamW([*layers.parameters(), *heads.parameters()], lr=3e-3)

for _ in range(8):
    for _ in range(4):
        x, y = torch.randn(12, 8), torch.randint(0, 5, (12,))
        losses = []
        for layer, head in zip(layers, heads, strict=True):
            x = layer(x).tanh()
            losses.append(F.cross_entropy(head(x), y))
        loss = losses[2] + 0.5 * losses[1] + 0.25 * losses[0]
        (loss / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
