"""A loss is differentiated by itself, for the norm of its gradient, before the sum with another."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
body, first, second = nn.Linear(8, 8), nn.Linear(8, 5), nn.Linear(8, 5)
model = nn.ModuleList([body, first, second])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
shares = []

for _ in range(12):
    features = torch.tanh(body(torch.randn(16, 8)))
    loss = F.cross_entropy(first(features), torch.randint(0, 5, (16,)))
    loss.backward(retain_graph=True)
    norm = body.weight.grad.norm().item()
    model.zero_grad()
    further = F.cross_entropy(second(features), torch.randint(0, 5, (16,)))
    (loss + further).backward()
    shares.append(norm / body.weight.grad.norm().item())
    optimizer.step()
    optimizer.zero_grad()
