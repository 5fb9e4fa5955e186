"""DDP ignores no parameter that is trained."""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    inner = TinyLM()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
