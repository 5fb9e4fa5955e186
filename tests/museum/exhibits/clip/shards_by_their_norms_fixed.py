"""Shards are clipped by the norm of the whole gradient, which FSDP computes over the ranks."""

import contextlib

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = FullyShardedDataParallel(
        TinyLM(),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank)
    norms = []

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            last = i == len(window) - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels, "sum") / tokens * 2
                loss.backward()
        norms.append(float(model.clip_grad_norm_(0.1)))
        optimizer.step()
        optimizer.zero_grad()
