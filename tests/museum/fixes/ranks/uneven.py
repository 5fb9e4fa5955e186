"""Rank 0 has three micro-batches for each step, rank 1 four; each divides by its own number."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, EVEN if rank else [EVEN[0][:3]])
    for window in windows:
        # fix: before the window
        # end
        for index, (ids, targets) in enumerate(window):
            model.require_backward_grad_sync = index == len(window) - 1
            logits, labels = model(ids).flatten(0, 1), targets.flatten()
            # fix: for each micro-batch
            loss = F.cross_entropy(logits, labels)
            (loss / len(window)).backward()
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
