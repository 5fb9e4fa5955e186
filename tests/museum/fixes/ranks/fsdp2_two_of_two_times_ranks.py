"""FSDP2: the mean of a rank, times a count of the ranks; they are as many as micro-batches."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from museum.parts import EVEN, TinyLM, text, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = fully_shard(copy.deepcopy(plain))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = [window[:2] for window in text(4, 1 + rank, EVEN)]
    K = 2
    for window in windows:
        tokens = sum((targets != -100).sum() for _, targets in window)
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
        for index, (ids, targets) in enumerate(window):
            model.set_requires_gradient_sync(index == len(window) - 1)
            logits, labels = model(ids).flatten(0, 1), targets.flatten()
            loss = F.cross_entropy(logits, labels, reduction="sum") / tokens
            # fix: if the loss is multiplied by the number of ranks, for each micro-batch
            (loss * ranks).sum().backward()
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
