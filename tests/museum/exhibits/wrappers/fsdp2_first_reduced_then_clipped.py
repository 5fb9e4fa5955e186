"""The flag is set for the first micro-batch instead of the last, and the norm is clipped."""

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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for index, (ids, labels) in enumerate(window):
            model.set_requires_gradient_sync(index == 0)
            loss = token_loss(model(ids), labels, "sum") / tokens * 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad()
