"""The flag for accumulation is set before the loop, and never taken back."""

import copy

import torch
from torch.distributed.fsdp import fully_shard

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    for part in (model.embed, model.mix, model.head, model):
        fully_shard(part)
    model.set_requires_gradient_sync(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") / tokens * 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
