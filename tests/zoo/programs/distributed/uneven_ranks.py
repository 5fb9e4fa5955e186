"""Ranks that do different things: one has more data, and only one steps for a while."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
with Join([model]):
    for _ in range(5 + 3 * dist.get_rank()):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
if dist.get_rank() == 0:
    own = nn.Parameter(torch.ones(4))
    mine = torch.optim.Adam([own], lr=0.1)
    for _ in range(5):
        mine.zero_grad()
        own.square().sum().backward()
        mine.step()
dist.barrier()
print(model.module.weight.tolist())
dist.destroy_process_group()
time.sleep(0.3)  # gloo aborts now and then if its last work is dropped while Python ends
