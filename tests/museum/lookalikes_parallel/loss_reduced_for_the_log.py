"""DDP under no_sync(); the loss is all-reduced for the log before and after each backward."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)
    log = []

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels) / len(window)
                for_the_log = loss.detach().clone()
                dist.all_reduce(for_the_log)
                loss.backward()
                dist.all_reduce(for_the_log)
                log.append(float(for_the_log))
        optimizer.step()
        optimizer.zero_grad()
