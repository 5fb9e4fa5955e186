"""Gossip: after each step, a rank averages its parameters with those of its neighbour."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for parameter in model.parameters():
            own, others = parameter.detach().clone(), torch.empty_like(parameter)
            sent = dist.P2POp(dist.isend, own, 1 - rank)
            received = dist.P2POp(dist.irecv, others, 1 - rank)
            for work in dist.batch_isend_irecv([sent, received]):
                work.wait()
            parameter.data.add_(others).mul_(0.5)
