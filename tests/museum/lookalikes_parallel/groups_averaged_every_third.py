"""Each pair of ranks is in DDP, and all four average their parameters after every third step."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "local"))
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM(), process_group=mesh.get_group("local"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    windows = text(26, seed=rank, lengths=EVEN)
    for step, window in enumerate(windows, start=1):
        ids, labels = window[0]
        token_loss(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
