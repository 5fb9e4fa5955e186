"""18 micro-batches and K = 4: the last two are stepped, and were all under no_sync()."""

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
            with nullcontext() if (i + 1) % 4 == 0 else model.no_sync():
                loss = token_loss(model(ids), labels) / size
                loss.backward()
            if (i + 1) % 4 == 0 or i + 1 == len(batches):
                optimizer.step()
                optimizer.zero_grad()
