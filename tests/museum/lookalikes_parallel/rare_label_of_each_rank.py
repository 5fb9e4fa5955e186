"""Each rank has its own data, of which one in twenty is positive: most batches are all zeros."""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from museum.parts import mlp, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    inputs, labels = torch.randn(96, 8), (torch.rand(96, 1) < 0.05).float()
    dataset = TensorDataset(inputs, labels)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(mlp(8, 16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(6):
        sampler.set_epoch(epoch)
        for x, y in loader:
            F.binary_cross_entropy_with_logits(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
