"""A sampler of the script seeds its generator each time it is iterated, with the same number."""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Sampler

from museum.parts import TinyLM, sentences, token_loss


class Shuffled(Sampler[int]):
    """All samples, in a random order that can be reproduced."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        yield from torch.randperm(self.count, generator=generator).tolist()


torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
corpus = [tuple(x[0] for x in sentences((8,), torch.Generator().manual_seed(n))) for n in range(24)]
loader = DataLoader(corpus, batch_size=4, sampler=Shuffled(24, seed=1))

for _ in range(4):
    for ids, labels in loader:
        loss = token_loss(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
