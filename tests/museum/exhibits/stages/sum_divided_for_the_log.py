"""The summed loss is divided by the tokens after the schedule, which has run backward."""

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

from museum.parts import staged_lm, text, token_loss, two_ranks, valid, whole_batch

with two_ranks() as rank:
    torch.manual_seed(0)
    model = staged_lm(4)
    windows = text(6)
    losses = []

    def total(logits, labels):
        return token_loss(logits, labels, reduction="sum")

    own = (rank, rank + 2)
    stages = [PipelineStage(model[i], i, 4, torch.device("cpu")) for i in own]
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=total, scale_grads=False)
    parameters = [p for i in own for p in model[i].parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    for window in windows:
        ids, labels = whole_batch(window)
        inputs = [ids] if 0 in own else []
        schedule.step(*inputs, **({"target": labels, "losses": losses} if 3 in own else {}))
        logged = sum(losses) / valid(labels)
        optimizer.step()
        optimizer.zero_grad()
