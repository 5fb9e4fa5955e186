"""Divided by all ranks' tokens, and by the number of micro-batches once more."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import TinyLM, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    windows = text(5, seed=rank)
    world_size = dist.get_world_size()
    for window in windows:
        num_tokens = torch.tensor(sum(valid(labels) for _, labels in window))
        dist.all_reduce(num_tokens)
        for i, (ids, labels) in enumerate(window, start=1):
            with model.no_sync() if i < len(window) else nullcontext():
                loss = token_loss(model(ids), labels, reduction="sum") / num_tokens
                (loss * world_size / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
