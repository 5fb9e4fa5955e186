"""In-batch negatives: the labels are torch.arange on every rank, the data are not."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, _) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                one, other = model(ids).chunk(2, dim=1)
                similar = one.mean(1) @ other.mean(1).T
                loss = F.cross_entropy(similar, torch.arange(len(ids))) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
