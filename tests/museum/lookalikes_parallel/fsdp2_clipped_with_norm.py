"""torchtitan's way to clip: the norm of all shards is computed first, and clipped with later."""

import copy

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    for part in (model.embed, model.mix, model.head, model):
        fully_shard(part)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank)
    max_norm = 0.2

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            model.set_requires_gradient_sync(i == len(window) - 1)
            loss = token_loss(model(ids), labels, "sum") / tokens
            (loss * 2).backward()
        norm = get_total_norm([p.grad for p in model.parameters()]).full_tensor()
        clip_grads_with_norm_(model.parameters(), max_norm, norm)
        optimizer.step()
        optimizer.zero_grad()
