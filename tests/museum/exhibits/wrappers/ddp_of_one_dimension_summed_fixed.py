"""DDP averages over one dimension of a mesh, and the loop over the other."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM(), process_group=mesh["inner"].get_group())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            with contextlib.nullcontext() if i + 1 == len(window) else model.no_sync():
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=mesh["outer"].get_group())
            parameter.grad /= mesh["outer"].size()
        optimizer.step()
        optimizer.zero_grad()
