"""DDP with a static graph: times the number of ranks, over which it averages."""

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM(), static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = [window[:1] for window in text(8, seed=1 + rank)]

    for ((ids, labels),) in windows:
        tokens = summed(valid(labels))
        loss = token_loss(model(ids), labels, "sum") / tokens * 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
