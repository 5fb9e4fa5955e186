"""Token averaging over accumulation, but not over the ranks."""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import TinyLM, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(5, seed=rank)
    for window in windows:
        num_items = sum(valid(labels) for _, labels in window)
        for index, (ids, labels) in enumerate(window):
            last = index + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels, reduction="sum") / num_items
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
