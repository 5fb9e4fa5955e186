"""Two models of an ensemble, each trained by two ranks."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "local"))
    torch.manual_seed(rank // 2)
    model = DistributedDataParallel(TinyLM(), process_group=mesh.get_group("local"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    windows = text(26, seed=rank, lengths=EVEN)
    for window in windows:
        ids, labels = window[0]
        token_loss(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
