"""The sum of the gradients is divided by the ranks that have data."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, IGNORED, TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(9, seed=1 + rank, lengths=EVEN)
    if rank == 1:
        for window in windows[2::3]:
            window[:] = [(ids, torch.full_like(labels, IGNORED)) for ids, labels in window]

    for window in windows:
        active = summed(any(valid(labels) for _, labels in window))
        for ids, labels in window:
            if not valid(labels):
                continue
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= active
        optimizer.step()
        optimizer.zero_grad()
