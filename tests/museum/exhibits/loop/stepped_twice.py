"""Merged from two branches: the step is there twice."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(7)
model = mlp(8, 20, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
clip_grad_norm = 5.0

for _ in range(6):
    image, target = torch.randn(16, 8), torch.randint(0, 4, (16,))
    loss = cross_entropy(model(image), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if clip_grad_norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad_norm)
    optimizer.step()
