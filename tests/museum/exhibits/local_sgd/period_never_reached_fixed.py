"""Local SGD under no_sync(); an averager makes the models equal in every second step."""

import torch
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    windows = text(12, seed=1 + rank, lengths=EVEN)

    for window in windows:
        with model.no_sync():
            for ids, labels in window:
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        optimizer.zero_grad()
