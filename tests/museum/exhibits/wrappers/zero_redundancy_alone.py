"""Without DDP, each rank steps its share of the parameters on its own gradients."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2
    )
    windows = text(8, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
