"""Sequence parallelism: the norm gets parts of each sequence, and the plan lacks it."""

import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from museum.parts import normed_lm, text, token_loss, two_ranks, valid

LENGTHS = (((6, 4), (2, 2), (12, 8), (4, 2)), ((2, 2), (12, 6), (4, 2), (10, 5)))

with two_ranks():
    torch.manual_seed(0)
    plain = normed_lm()
    model = copy.deepcopy(plain)
    parts = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "first": ColwiseParallel(input_layouts=Shard(1)),
        "second": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, init_device_mesh("cpu", (2,)), parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, lengths=LENGTHS)

    for window in windows:
        tokens = sum(valid(labels) for _, labels in window)
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") / tokens
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
