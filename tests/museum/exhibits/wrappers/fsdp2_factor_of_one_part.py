"""The divide factor is set on one part of the model; the other parts average."""

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
    model.head.set_gradient_divide_factor(1.0)
    model.head.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            model.set_requires_gradient_sync(i == len(window) - 1)
            loss = token_loss(model(ids), labels, "sum") / tokens * 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
