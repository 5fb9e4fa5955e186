"""Tensor parallelism: both ranks have the same data, and divide by all tokens of the window."""

import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from museum.parts import TinyLM, text, token_loss, two_ranks, valid

with two_ranks():
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    parallelize_module(model, mesh, {"mix": ColwiseParallel(), "head": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6)

    for window in windows:
        tokens = sum(valid(labels) for _, labels in window)
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") / tokens
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
