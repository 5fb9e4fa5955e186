"""Hybrid sharding by hand: gradients are averaged over the ranks that share a copy alone."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    copies, parts = mesh.get_group("copies"), mesh.get_group("parts")
    part = mesh.get_local_rank("parts")
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(8, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for parameter in model.parameters():
            whole = parameter.grad.flatten()
            own = torch.empty(whole.numel() // 2)
            dist.reduce_scatter_tensor(own, whole, group=parts)
            own /= 2
            dist.all_gather_into_tensor(whole, own, group=parts)
            parameter.grad.copy_(whole.view_as(parameter))
        optimizer.step()
        optimizer.zero_grad()
