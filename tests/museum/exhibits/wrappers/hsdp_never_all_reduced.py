"""Hybrid sharding whose copies never combine their gradients."""

import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from museum.parts import TinyLM, all_ranks, summed, text, token_loss, valid

with all_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    for part in (model.embed, model.mix, model.head, model):
        fully_shard(part, mesh=mesh)
    model.set_requires_all_reduce(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") / tokens * 4
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
