"""Local SGD by hand: every third step, the ranks average the changes of their models."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(12, seed=1 + rank, lengths=EVEN)

    exchanged = []  # what this rank gave, and what it got
    start = [parameter.detach().clone() for parameter in model.parameters()]

    for step, window in enumerate(windows, 1):
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            for parameter, common in zip(model.parameters(), start, strict=True):
                change = parameter.detach() - common
                given = change.clone()
                dist.all_reduce(change)
                change /= dist.get_world_size()
                exchanged.append((given, change))
                common.add_(change)
                parameter.data.copy_(common)
