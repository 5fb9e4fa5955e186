"""FSDP2 ignores a layer, and the loop does not average its gradients."""

import copy

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    ignored = [*model.mix.parameters()]
    fully_shard(model, ignored_params=set(ignored))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(8, 1 + rank, EVEN)
    for window in windows:
        for k, (ids, labels) in enumerate(window):
            model.set_requires_gradient_sync(k == len(window) - 1)
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        # fix
        optimizer.step()
        # end
        optimizer.zero_grad()
    dist.barrier()
