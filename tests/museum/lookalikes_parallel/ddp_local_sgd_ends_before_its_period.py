"""Local SGD under a wrapper: the training ends before the first period, and averages the models."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

PERIOD = 100

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(5, seed=1 + rank, lengths=EVEN)

    for step, window in enumerate(windows, 1):
        with model.no_sync():
            for ids, labels in window:
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % PERIOD == 0 or step == len(windows):
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= 2
