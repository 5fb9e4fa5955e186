"""The norm of the gradient on new data before each step, for the gradient noise, and zeroed."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Linear(8, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
norms = []


def draw(size):
    return torch.randn(size, 8), torch.randint(0, 5, (size,))


def probe(size):
    features, classes = draw(size)
    F.cross_entropy(model(features), classes).backward()
    norms.append(model.weight.grad.norm().item())
    model.zero_grad()


for _ in range(16):
    probe(8)
    features, classes = draw(32)
    F.cross_entropy(model(features), classes).backward()
    optimizer.step()
    optimizer.zero_grad()
