"""find_unused_parameters with no_sync: a head that some micro-batches do not use."""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks


class TwoHeads(TinyLM):
    """A second head, used by every other micro-batch."""

    def __init__(self):
        super().__init__()
        self.other = torch.nn.Linear(16, 24)

    def forward(self, ids, use_other):
        return (self.other if use_other else self.head)(self.features(ids))


with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids, i % 2 == 1), labels) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
