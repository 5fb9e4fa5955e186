"""Local SGD under a wrapper: no backward synchronises, and the ranks average their models."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(7, seed=1 + rank, lengths=EVEN)

    with model.no_sync():
        for step, window in enumerate(windows, 1):
            for ids, labels in window:
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 0:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.data)
                    parameter.data /= 2
