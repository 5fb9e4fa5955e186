"""The epoch's last micro-batch synchronises too, and the short window is divided by its length."""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = [batch for window in text(5, 1 + rank, EVEN) for batch in window][:18]

    for _ in range(3):
        for i, (ids, labels) in enumerate(batches):
            size = 4 if i < 16 else 2
            last = (i + 1) % 4 == 0 or i + 1 == len(batches)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels) / size
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
