"""Interleaved stages sharded by FSDP2: means over unequal numbers of tokens are averaged."""

import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

from museum.parts import all_ranks, staged_lm, text, token_loss, whole_batch

with all_ranks():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    data, place = mesh["data"].get_local_rank(), mesh["pipeline"].get_local_rank()
    plain = staged_lm(4)
    model = copy.deepcopy(plain)
    windows = text(6, seed=1 + data)
    own = (place, place + 2)
    for i in own:
        fully_shard(model[i], mesh=mesh["data"], reshard_after_forward=False)
    group = mesh["pipeline"].get_group()
    stages = [PipelineStage(model[i], i, 4, torch.device("cpu"), group=group) for i in own]
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=token_loss)
    optimizer = torch.optim.SGD([p for i in own for p in model[i].parameters()], lr=0.1)
    for window in windows:
        ids, labels = whole_batch(window)
        inputs = [ids] if 0 in own else []
        schedule.step(*inputs, **({"target": labels} if 3 in own else {}))
        optimizer.step()
        optimizer.zero_grad()
