"""DTensor parameters on a mesh of one rank."""

import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    torch.manual_seed(0)
    weight = nn.Parameter(distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]))
    optimizer = torch.optim.AdamW([weight], lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        inputs = distribute_tensor(torch.randn(2, 8), mesh, [Shard(1)])
        (inputs @ weight).square().mean().backward()
        nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()
    print(type(weight.grad) is DTensor, weight.full_tensor().tolist())
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo aborts now and then if its last work is dropped while Python ends
