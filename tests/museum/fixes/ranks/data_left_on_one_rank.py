"""A Join context of DDP divides by all ranks, also those that have no data left."""

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    windows = text(12, 1 + rank, [window[:1] for window in EVEN])[: 12 - 6 * rank]
    # fix: for the mean over the ranks that have data left
    with model.join():
        # end
        for ((ids, labels),) in windows:
            token_loss(model(ids), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
