"""Without DDP, the loop averages the gradients, and each rank steps its share."""

import torch
import torch.distributed as dist
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
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
