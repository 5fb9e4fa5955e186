"""(i + 1) % K; an average of the loss is logged before the step."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            last = (i + 1) % len(window) == 0
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        shown = loss.detach().clone()
        dist.all_reduce(shown, op=dist.ReduceOp.SUM)
        optimizer.step()
        optimizer.zero_grad()
