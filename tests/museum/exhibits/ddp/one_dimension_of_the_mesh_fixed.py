"""DDP over all ranks of a mesh, which hold different data."""

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    windows = text(26, seed=rank, lengths=EVEN)
    for window in windows:
        ids, labels = window[0]
        token_loss(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
