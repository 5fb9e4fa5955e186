"""A contrastive loss over all ranks: gathering has a collective in its backward, no_sync or not."""

from contextlib import nullcontext

import torch
import torch.distributed.nn.functional as gather
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
                pooled = F.normalize(model(ids).mean(1), dim=-1)
                keys = torch.cat(gather.all_gather(pooled))
                own = torch.arange(len(ids)) + rank * len(ids)
                loss = F.cross_entropy(pooled @ keys.T / 0.1, own) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
