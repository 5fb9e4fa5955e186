"""Means of equal micro-batches; the loop sums the gradients of the ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from museum.parts import EVEN, TinyLM, text, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, EVEN)
    for window in windows:
        for ids, targets in window:
            logits, labels = model(ids).flatten(0, 1), targets.flatten()
            loss = F.cross_entropy(logits, labels) / len(window)
            loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            # fix: after the last backward, for each parameter p
            dist.all_reduce(p.grad)
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
