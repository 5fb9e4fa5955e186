"""TP under FSDP2: divided by the tokens of all ranks, over which FSDP2 averages again."""

import copy

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from museum.parts import TinyLM, all_ranks, text, token_loss, valid

with all_ranks():
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"mix": ColwiseParallel(), "head": RowwiseParallel()})
    for part in (model.embed, model.mix, model.head, model):
        fully_shard(part, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + mesh["data"].get_local_rank())

    for window in windows:
        tokens = torch.tensor(float(sum(valid(labels) for _, labels in window)))
        dist.all_reduce(tokens, group=mesh["data"].get_group())
        for i, (ids, labels) in enumerate(window):
            model.set_requires_gradient_sync(i == len(window) - 1)
            loss = token_loss(model(ids), labels, "sum") / tokens
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
