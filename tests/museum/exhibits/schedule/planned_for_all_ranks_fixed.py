"""The decay is planned for the batches of each rank."""

import math

import torch
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from museum.parts import all_ranks, mlp, points

EPOCHS, ROWS = 3, 4
with all_ranks() as rank:
    x, y = points([96])[0]
    data = TensorDataset(x, y)
    loader = DataLoader(data, ROWS, sampler=DistributedSampler(data))
    steps = EPOCHS * len(loader)
    torch.manual_seed(0)
    model = DistributedDataParallel(mlp(8, 16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)

    def planned(step: int) -> float:
        """Half a cosine over the optimizer steps of each rank."""
        whole = EPOCHS * len(loader)
        return 0.05 * (1 + math.cos(math.pi * step / whole))

    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            mse_loss(model(x), y).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
