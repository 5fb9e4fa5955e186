"""The same, with one sum over the tokens of all micro-batches."""

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from museum.parts import staged_lm, text, token_loss, two_ranks, valid, whole_batch

with two_ranks() as rank:
    torch.manual_seed(0)
    model = staged_lm(2)
    windows = text(6)
    count = 0

    def share(logits, labels):
        return token_loss(logits, labels, reduction="sum") / count

    stage = PipelineStage(model[rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=share, scale_grads=False)
    optimizer = torch.optim.SGD(model[rank].parameters(), lr=0.1)
    for window in windows:
        ids, labels = whole_batch(window)
        count = valid(labels)
        if rank == 0:
            schedule.step(ids)
        else:
            schedule.step(target=labels)
        optimizer.step()
        optimizer.zero_grad()
