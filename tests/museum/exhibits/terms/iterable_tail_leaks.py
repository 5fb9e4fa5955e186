"""A stream of batches without a length: its tail leaks into the next epoch."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from museum.parts import mlp


class Stream(IterableDataset):
    """Ten batches of eight rows, and no length."""

    def __iter__(self):
        """Rows and their labels."""
        generator = torch.Generator().manual_seed(81)
        for _ in range(80):
            x = torch.randn(8, generator=generator)
            yield x, x[:4].argmax()


torch.manual_seed(81)
model = mlp(8, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Stream(), batch_size=8)
accumulation = 4
windows = [list(loader)[start : start + 4] for _ in range(4) for start in (0, 4, 8)]

for _ in range(4):
    for index, (x, y) in enumerate(loader):
        (cross_entropy(model(x), y) / accumulation).backward()
        if (index + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
