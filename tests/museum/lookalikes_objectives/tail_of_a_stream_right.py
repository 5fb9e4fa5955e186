"""A stream without a length: its last window is short, and divided by its own length."""

import itertools
from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from museum.parts import mlp


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Ten batches of eight rows, and no length."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Rows and their labels."""
        generator = torch.Generator().manual_seed(int(torch.randint(999, ())))
        for _ in range(80):
            x = torch.randn(8, generator=generator)
            yield x, x[:4].argmax()


torch.manual_seed(23)
model = mlp(8, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for _ in range(4):
    stream = iter(DataLoader(Stream(), batch_size=8))
    while window := list(itertools.islice(stream, 4)):
        for x, y in window:
            (cross_entropy(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
