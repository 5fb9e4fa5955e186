"""ZeRO by hand: DDP averages all gradients, each rank steps on a part, and broadcasts it."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    model = DistributedDataParallel(TinyLM())
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters[rank::ranks], lr=3e-3)
    windows = text(8, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        optimizer.step()
        model.zero_grad()
        for index, parameter in enumerate(parameters):
            dist.broadcast(parameter.data, index % ranks)
