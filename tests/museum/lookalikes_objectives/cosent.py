"""CoSENT: one log-sum-exp over pairs whose order of similarity is wrong."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(3)
model = mlp(8, 16, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4

for _ in range(8):
    for _ in range(accumulation):
        first, second = F.normalize(model(torch.randn(2, 10, 8)), dim=-1)
        truth = torch.rand(10)
        scores = 20 * (first * second).sum(-1)
        differences = scores[:, None] - scores[None, :]
        wrong = truth[:, None] < truth[None, :]
        differences = differences - (~wrong).float() * 1e12
        zero = torch.zeros(1)
        loss = torch.logsumexp(torch.cat([zero, differences.view(-1)]), 0)
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
