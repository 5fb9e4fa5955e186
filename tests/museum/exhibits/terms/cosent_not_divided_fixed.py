"""Each micro-batch has an equal share."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(81)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = []

for _ in range(6):
    window = [(torch.randn(2, 10, 8), torch.rand(10)) for _ in range(4)]
    for views, truth in window:
        first, second = F.normalize(model(views), dim=-1)
        scores = 20 * (first * second).sum(-1)
        differences = scores[:, None] - scores[None, :]
        ordered = truth[:, None] >= truth[None, :]
        differences = differences - ordered.float() * 1e12
        loss = torch.logsumexp(torch.cat([torch.zeros(1), differences.view(-1)]), 0)
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
