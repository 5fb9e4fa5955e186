"""The tokens of all ranks' windows are counted first."""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, 1 + rank, EVEN if rank else [EVEN[0][:3]])

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels, "sum") * 2 / tokens
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
