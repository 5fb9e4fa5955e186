"""Two pipelines of two stages; nothing combines the gradients of the last one."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from museum.parts import EVEN, all_ranks, staged_lm, text, token_loss, whole_batch

with all_ranks() as rank:
    number, position = divmod(rank, 2)
    pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    copies = [dist.new_group([0, 2]), dist.new_group([1, 3])][position]
    torch.manual_seed(0)
    model = staged_lm(2)
    part = model[position]
    stage = PipelineStage(part, position, 2, torch.device("cpu"), group=pipelines[number])
    schedule = ScheduleGPipe(stage, 4, loss_fn=token_loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=3e-3)
    windows = text(6, seed=1 + number, lengths=EVEN)

    for window in windows:
        ids, labels = whole_batch(window)
        if position == 0:
            schedule.step(ids)
            for parameter in part.parameters():
                dist.all_reduce(parameter.grad, group=copies)
                parameter.grad /= 2
        else:
            schedule.step(target=labels)
        optimizer.step()
        optimizer.zero_grad()
