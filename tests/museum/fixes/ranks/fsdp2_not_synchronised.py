"""FSDP2 never reduces gradients: their synchronisation is off for every micro-batch."""

import copy

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = fully_shard(copy.deepcopy(plain))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, EVEN)
    windows[2] = windows[2][:2]  # the tail of an epoch
    for window in windows:
        for k, (ids, labels) in enumerate(window):
            loss = token_loss(model(ids), labels) / len(window)
            # fix: of this window, which may be a short one; before the backward of micro-batch k
            model.set_requires_gradient_sync(False)
            loss.backward()
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
