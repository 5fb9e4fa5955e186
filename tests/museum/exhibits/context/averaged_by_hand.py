"""Each rank holds a part of each sequence; sums over all tokens are averaged by hand."""

import torch
import torch.distributed as dist

from museum.parts import Attention, all_ranks, part_of, summed, text, token_loss, valid

with all_ranks() as rank:
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    plain = Attention()
    model = Attention(ranks, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    windows = text(6, seed=1)  # the same sequences on all ranks

    for window in windows:
        parts = [part_of(batch, rank, ranks) for batch in window]
        tokens = summed(sum(valid(labels) for _, labels in parts))
        for ids, labels in parts:
            loss = token_loss(model(ids), labels, "sum") / tokens
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
