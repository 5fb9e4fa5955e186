"""Interleaved stages sharded by FSDP2: the sum over all tokens is divided once."""

import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

from museum.parts import all_ranks, staged_lm, summed, text, token_loss, valid, whole_batch

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
    tokens = torch.tensor(0.0)

    def share_of_all(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return token_loss(logits, labels, "sum") * 2 / tokens

    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=share_of_all, scale_grads=False)
    optimizer = torch.optim.SGD([p for i in own for p in model[i].parameters()], lr=0.1)
    for window in windows:
        ids, labels = whole_batch(window)
        tokens = summed(valid(labels)) / 2  # of both pipelines, which have two ranks each
        inputs = [ids] if 0 in own else []
        schedule.step(*inputs, **({"target": labels} if 3 in own else {}))
        optimizer.step()
        optimizer.zero_grad()
