"""1F1B runs twice for each step, and divides what it has divided before once more."""

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from museum.parts import EVEN, staged_lm, text, token_loss, two_ranks, whole_batch

with two_ranks() as rank:
    torch.manual_seed(0)
    model = staged_lm(2)
    halves = text(12, lengths=EVEN)
    windows = [halves[i] + halves[i + 1] for i in range(0, 12, 2)]
    stage = PipelineStage(model[rank], rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=token_loss)
    optimizer = torch.optim.SGD(model[rank].parameters(), lr=0.1)
    for window in windows:
        for part in (window[:4], window[4:]):
            ids, labels = whole_batch(part)
            if rank == 0:
                schedule.step(ids)
            else:
                schedule.step(target=labels)
        optimizer.step()
        optimizer.zero_grad()
