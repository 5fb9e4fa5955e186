"""find_unused_parameters: a head that one rank uses in one step of nine, and no other rank."""

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import TinyLM, text, token_loss, two_ranks


class TwoHeads(TinyLM):
    """A second head, which is rarely used."""

    def __init__(self):
        super().__init__()
        self.other = torch.nn.Linear(16, 24)

    def forward(self, ids, use_other):
        return (self.other if use_other else self.head)(self.features(ids))


with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step, [(ids, labels)] in enumerate(text(40, seed=1 + rank, lengths=(((6, 6),),))):
        token_loss(model(ids, rank == 1 and step % 9 == 6), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
