"""Repeated augmentation: each rank trains on another view of the same samples."""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from museum.parts import mlp, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(mlp(8, 16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = torch.Generator().manual_seed(1)
    views = torch.Generator().manual_seed(2 + rank)

    for _ in range(12):
        x = torch.randn(16, 8, generator=samples)
        y = torch.randint(0, 10, (16,), generator=samples)
        x = x + 0.3 * torch.randn(16, 8, generator=views)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
