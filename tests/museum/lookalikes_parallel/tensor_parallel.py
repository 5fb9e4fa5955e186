"""Tensor parallelism: both ranks see the same data, and hold halves of the same layers."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from museum.parts import mlp, points, two_ranks

with two_ranks():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    model = mlp(8, 16, 1)
    first, last = (name for name, part in model.named_children() if hasattr(part, "weight"))
    parallelize_module(model, mesh, {first: ColwiseParallel(), last: RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(6):
        window = points([16, 8, 12], seed=10 * step)
        samples = sum(len(x) for x, _ in window)
        for x, y in window:
            loss = torch.nn.functional.mse_loss(model(x), y, reduction="sum") / samples
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
