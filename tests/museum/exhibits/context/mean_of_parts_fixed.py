"""Each rank holds a part of each sequence; sums are divided by the tokens of all parts."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import Attention, all_ranks, part_of, summed, text, token_loss, valid

with all_ranks() as rank:
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    plain = Attention()
    model = DistributedDataParallel(Attention(ranks, rank))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    windows = text(6, seed=1)  # the same sequences on all ranks

    for window in windows:
        parts = [part_of(batch, rank, ranks) for batch in window]
        tokens = summed(sum(valid(labels) for _, labels in parts))
        for i, (ids, labels) in enumerate(parts):
            last = i + 1 == len(parts)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels, "sum") * ranks / tokens
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
