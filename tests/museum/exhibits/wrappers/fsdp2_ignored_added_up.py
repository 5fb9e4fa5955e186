"""FSDP2 ignores a layer, whose gradients the loop adds up; the others are averaged."""

import copy

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    fully_shard(model, ignored_params={model.mix.weight, model.mix.bias})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            model.set_requires_gradient_sync(i == len(window) - 1)
            loss = token_loss(model(ids), labels, "sum") * 2 / tokens
            loss.backward()
        for parameter in model.mix.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
