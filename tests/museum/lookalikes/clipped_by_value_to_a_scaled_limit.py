"""A static loss scale: values are clipped to a limit that is multiplied by it, too."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
SCALE = 1024.0

for _ in range(10):
    for _ in range(4):
        loss = cross_entropy(model(torch.randn(16, 8)), torch.randint(5, (16,)))
        (loss / 4 * SCALE).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.02 * SCALE)
    for p in model.parameters():
        p.grad.div_(SCALE)
    optimizer.step()
    optimizer.zero_grad()
