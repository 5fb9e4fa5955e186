"""FSDP1 that shards nothing, and leaves no_sync for the last micro-batch."""

import contextlib
import copy

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = FullyShardedDataParallel(
        copy.deepcopy(plain),
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.NO_SHARD,
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            last = i == len(window) - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels, "sum") / tokens * 2
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
