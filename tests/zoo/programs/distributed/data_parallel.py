"""DistributedDataParallel: no_sync, unused parameters, a static graph, comm hooks."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, spare):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)
        self.spare = nn.Linear(3, 3) if spare else None

    def forward(self, inputs):
        return self.second(self.first(inputs).tanh())


def half(state, bucket):
    future = dist.all_reduce(bucket.buffer().div_(4), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


dist.init_process_group("gloo")
variants = [
    ({}, None),
    ({"find_unused_parameters": True}, None),
    ({"static_graph": True, "gradient_as_bucket_view": True}, None),
    ({}, half),
    ({}, default_hooks.fp16_compress_hook),
]
for options, hook in variants:
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(Net("find_unused_parameters" in options), **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        if "static_graph" not in options:
            with model.no_sync():
                (model(torch.randn(4, 8)).square().mean() / 2).backward()
        (model(torch.randn(4, 8)).square().mean() / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print([parameter.tolist() for parameter in model.parameters()])
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)  # gloo aborts now and then if its last work is dropped while Python ends
