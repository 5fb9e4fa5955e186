"""DDP averages over one dimension of a mesh, and the loop adds up over the other."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    across = mesh["outer"].get_group()
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM(), process_group=mesh["inner"].get_group())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, [window[:1] for window in EVEN])
    for ((ids, labels),) in windows:
        token_loss(model(ids), labels).backward()
        for p in model.parameters():
            assert p.grad is not None
            # fix: after the last backward, for each parameter p
            dist.all_reduce(p.grad, group=across)
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
