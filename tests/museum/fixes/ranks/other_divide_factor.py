"""A sum over the tokens of all ranks, times the ranks, under FSDP2 with a divide factor of 4."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from museum.parts import IGNORED, TinyLM, text, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    sharded = fully_shard(model)
    factor = 4.0
    sharded.set_gradient_divide_factor(factor)
    sharded.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank)
    for window in windows:
        # fix: before the window
        tokens = sum((labels != IGNORED).sum() for _, labels in window)
        dist.all_reduce(tokens)
        # end
        for index, (ids, targets) in enumerate(window):
            sharded.set_requires_gradient_sync(index == len(window) - 1)
            logits, labels = model(ids).flatten(0, 1), targets.flatten()
            # fix: for each micro-batch
            loss = F.cross_entropy(logits, labels, reduction="sum") / tokens
            (loss * dist.get_world_size()).backward()
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
