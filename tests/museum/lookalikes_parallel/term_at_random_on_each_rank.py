"""Each rank draws at which steps it adds a further loss."""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from museum.parts import IGNORED, VOCABULARY, TinyLM, text, token_loss, two_ranks


class TwoHeads(TinyLM):
    """The next token, and the one after it."""

    def __init__(self):
        super().__init__()
        self.second = torch.nn.Linear(16, VOCABULARY)

    def forward(self, ids):
        """The logits of both."""
        features = self.features(ids)
        return self.head(features), self.second(features)


def shifted(labels):
    """The labels after the next ones."""
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = text(24, seed=1 + rank, lengths=(((6, 6),),))
    windows = [[(ids, y, shifted(y)) for ids, y in window] for window in data]
    chance = torch.Generator().manual_seed(rank)

    for [(ids, labels, later)] in windows:
        first, second = model(ids)
        loss = token_loss(first, labels)
        if torch.rand((), generator=chance) < 0.5:
            loss = loss + 0.3 * token_loss(second, later)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
