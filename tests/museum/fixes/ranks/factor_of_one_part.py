"""The divide factor of 1 is set on one part of the model; FSDP2 averages the others."""

import copy

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    for part in (model.embed, model.mix, model.head, model):
        fully_shard(part)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing
    factor = 1.0
    # fix
    model.head.set_gradient_divide_factor(factor)
    # end
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(4, seed=1 + rank)
    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for index, (ids, labels) in enumerate(window):
            model.set_requires_gradient_sync(index == len(window) - 1)
            (token_loss(model(ids), labels, "sum") / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
