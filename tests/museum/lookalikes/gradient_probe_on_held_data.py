"""The norm of the gradient on a batch that is held for it, before each window and zeroed."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
K = 4
model = nn.Linear(8, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
held = torch.randn(10, 8), torch.randint(0, 5, (10,))
norms = []


def probe():
    F.cross_entropy(model(held[0]), held[1]).backward()
    norms.append(model.weight.grad.norm().item())
    model.zero_grad()


for step in range(16):
    k = K if step < 8 else 1
    probe()
    for _ in range(k):
        size = 64 // k
        loss = F.cross_entropy(model(torch.randn(size, 8)), torch.randint(0, 5, (size,)))
        (loss / k).backward()
    optimizer.step()
    optimizer.zero_grad()
