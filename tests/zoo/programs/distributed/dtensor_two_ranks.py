"""DTensor parameters, sharded and replicated, on two ranks."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
weight = nn.Parameter(distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]))
bias = nn.Parameter(distribute_tensor(torch.randn(4), mesh, [Replicate()]))
optimizer = torch.optim.SGD([weight, bias], lr=0.05)
for _ in range(8):
    optimizer.zero_grad()
    inputs = distribute_tensor(torch.randn(2, 8), mesh, [Replicate()])
    ((inputs @ weight) + bias).square().mean().backward()
    optimizer.step()
print(dist.get_rank(), weight.full_tensor().tolist(), bias.full_tensor().tolist())
dist.destroy_process_group()
time.sleep(0.3)  # gloo aborts now and then if its last work is dropped while Python ends
