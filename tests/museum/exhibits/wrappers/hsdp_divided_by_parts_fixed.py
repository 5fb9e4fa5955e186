"""Hybrid sharding divides by the shards alone, and the loss is multiplied by their number."""

import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from museum.parts import TinyLM, all_ranks, summed, text, token_loss, valid

with all_ranks() as rank:
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    for part in (model.embed, model.mix, model.head, model):
        fully_shard(part, mesh=mesh)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(2.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing
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
