"""Pairs of ranks combine gradients in each step, and all four average parameters every third."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for step, window in enumerate(windows, 1):
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=halves[rank // 2])
            parameter.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
