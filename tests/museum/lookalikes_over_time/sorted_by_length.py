"""A sampler of the script sorts the samples by their length, in each epoch alike."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from museum.parts import TinyLM, sentences, token_loss


class ByLength(Sampler[int]):
    """All samples, the shortest first; or in a random order."""

    def __init__(self, lengths: list[int], at_random: bool = False) -> None:
        self.lengths, self.at_random = lengths, at_random

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        if self.at_random:
            yield from torch.randperm(len(self.lengths)).tolist()
        else:
            yield from sorted(range(len(self.lengths)), key=self.lengths.__getitem__)


torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
lengths = [4 + n % 5 for n in range(24)]
generators = [torch.Generator().manual_seed(n) for n in range(24)]
rows = [sentences((n,), g) for n, g in zip(lengths, generators, strict=True)]
corpus: Any = [tuple(x[0] for x in row) for row in rows]
loader: DataLoader[Any] = DataLoader(corpus, batch_size=1, sampler=ByLength(lengths))

for _ in range(4):
    for ids, labels in loader:
        loss = token_loss(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
