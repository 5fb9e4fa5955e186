"""Ranks that average gradients themselves, asynchronously, with object collectives too."""

import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
for _ in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    handles = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
    for handle, parameter in zip(handles, model.parameters()):
        handle.wait()
        parameter.grad /= 2
    shared = [None, None]
    dist.all_gather_object(shared, loss.item())
    optimizer.step()
print(shared, model.weight.tolist())
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)  # gloo aborts now and then if its last work is dropped while Python ends
