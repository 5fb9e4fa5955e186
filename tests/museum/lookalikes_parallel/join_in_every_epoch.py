"""Ranks with unequal numbers of batches in Join: a rank without data takes fewer steps."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from museum.parts import mlp

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(mlp(8, 16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + rank)

for _ in range(3):
    with Join([model]):
        for _ in range(6 - 2 * rank):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            cross_entropy(model(x), x[:, :4].argmax(1)).backward()
            optimizer.step()

dist.barrier()
dist.destroy_process_group()
