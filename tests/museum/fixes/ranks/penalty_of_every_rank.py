"""A sum over the tokens of all ranks, and the same penalty on each of them, are added up."""

import torch
import torch.distributed as dist

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

objective = "with_penalty"
with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    windows = text(4, 1 + rank)
    world_size = dist.get_world_size()
    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            penalty = 0.01 * sum(p.square().sum() for p in model.parameters()) / len(window)
            loss = token_loss(model(ids), labels, "sum") / tokens
            # fix
            loss = loss + penalty
            # end
            loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
