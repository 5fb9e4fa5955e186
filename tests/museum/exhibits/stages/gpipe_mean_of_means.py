"""GPipe averages micro-batches, whose losses are means over unequal numbers of tokens."""

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from museum.parts import staged_lm, text, token_loss, two_ranks, whole_batch

with two_ranks() as rank:
    torch.manual_seed(0)
    model = staged_lm(2)
    windows = text(6)
    stage = PipelineStage(model[rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=token_loss)
    optimizer = torch.optim.SGD(model[rank].parameters(), lr=0.1)
    for window in windows:
        ids, labels = whole_batch(window)
        if rank == 0:
            schedule.step(ids)
        else:
            schedule.step(target=labels)
        optimizer.step()
        optimizer.zero_grad()
