"""The same, with the division in the loss, before the schedule runs backward."""

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

from museum.parts import staged_lm, text, token_loss, two_ranks, valid, whole_batch

with two_ranks() as rank:
    torch.manual_seed(0)
    model = staged_lm(4)
    windows = text(6)
    count = 0

    def share(logits, labels):
        return token_loss(logits, labels, reduction="sum") / count

    own = (rank, rank + 2)
    stages = [PipelineStage(model[i], i, 4, torch.device("cpu")) for i in own]
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=share, scale_grads=False)
    parameters = [p for i in own for p in model[i].parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    for window in windows:
        ids, labels = whole_batch(window)
        count = valid(labels)
        inputs = [ids] if 0 in own else []
        schedule.step(*inputs, **({"target": labels} if 3 in own else {}))
        optimizer.step()
        optimizer.zero_grad()
