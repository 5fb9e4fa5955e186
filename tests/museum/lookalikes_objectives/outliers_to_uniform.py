"""Outlier exposure: examples of no class are pulled to equal probabilities."""

import torch

from museum.parts import mlp

torch.manual_seed(45)
model = mlp(8, 24, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for _ in range(10):
    inputs, labels = torch.randn(48, 8), torch.randint(0, 5, (48,))
    inside = (torch.rand(48) < 0.7).float()
    log_p = model(inputs).log_softmax(-1)
    picked = log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    known = -(picked * inside).sum() / inside.sum()
    outside = -(log_p.mean(-1) * (1 - inside)).sum() / (1 - inside).sum()
    (known + 0.5 * outside).backward()
    optimizer.step()
    optimizer.zero_grad()
