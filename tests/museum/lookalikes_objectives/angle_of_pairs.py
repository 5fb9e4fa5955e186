"""AnglE: a log-sum-exp over differences of angles, beside a root of squares, both divided by K."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(8)
model = mlp(8, 16, 6)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4

for _ in range(8):
    for _ in range(accumulation):
        first, second = model(torch.randn(2, 10, 8))
        truth = torch.rand(10)
        a, b = first.chunk(2, 1)
        c, d = second.chunk(2, 1)
        size = (c**2 + d**2).sum(1, keepdim=True)
        angles = torch.cat([(a * c + b * d) / size, (b * c - a * d) / size], 1)
        scores = 20 * angles.sum(1).abs()
        differences = scores[:, None] - scores[None, :]
        ordered = truth[:, None] >= truth[None, :]
        differences = differences - ordered.float() * 1e12
        loss = torch.logsumexp(torch.cat([torch.zeros(1), differences.view(-1)]), 0)
        loss = loss + 0.1 * torch.sqrt(F.mse_loss(first, second))
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
