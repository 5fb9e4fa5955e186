"""Tensor parallelism: both ranks have the same micro-batches, whose means count the same."""

import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from museum.parts import TinyLM, text, token_loss, two_ranks

with two_ranks():
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    parallelize_module(model, mesh, {"mix": ColwiseParallel(), "head": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
