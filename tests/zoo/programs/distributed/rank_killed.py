"""One of two ranks dies; the other notices in its collective and leaves with a status."""

import os
import signal

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
weight = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    weight.square().sum().backward()
    if dist.get_rank() == 1 and step == 4:
        print("rank 1 dies", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(weight.grad)
    except RuntimeError:
        print("rank 0 noticed", weight.tolist(), flush=True)
        os._exit(9)
    optimizer.step()
