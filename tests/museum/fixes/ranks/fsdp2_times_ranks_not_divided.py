"""The means of two ranks of FSDP2 are multiplied by their number, and not divided by K."""

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
        for index, (ids, targets) in enumerate(window):
            model.set_requires_gradient_sync(index == len(window) - 1)
            logits, labels = model(ids).flatten(0, 1), targets.flatten()
            loss = F.cross_entropy(logits, labels)
            # fix: if the constant in front of the loss is the number of ranks, for each micro-batch
            (loss * dist.get_world_size()).backward()
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
