"""The head's gradients are combined in groups of two ranks, all others over four."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for name, parameter in model.named_parameters():
            group = halves[rank // 2] if name.startswith("head") else None
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= dist.get_world_size(group)
        optimizer.step()
        optimizer.zero_grad()
