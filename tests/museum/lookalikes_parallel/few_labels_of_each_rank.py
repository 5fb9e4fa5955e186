"""Each rank has its own data: batches of two, of two classes, whose labels are often equal."""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from museum.parts import mlp, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    inputs, labels = torch.randn(64, 8), torch.randint(2, (64,))
    dataset = TensorDataset(inputs, labels)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)
    model = DistributedDataParallel(mlp(8, 16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
