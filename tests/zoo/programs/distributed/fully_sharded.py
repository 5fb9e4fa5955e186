"""FSDP2, with gradients that are not synchronised at first."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
mesh = init_device_mesh("cpu", (2,))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for _ in range(6):
    optimizer.zero_grad()
    for micro in range(2):
        model.set_requires_gradient_sync(micro == 1)
        (model(torch.randn(4, 8)).square().mean() / 2).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print(norm.full_tensor().item())
print([parameter.full_tensor().tolist() for parameter in model.parameters()])
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)  # gloo aborts now and then if its last work is dropped while Python ends
