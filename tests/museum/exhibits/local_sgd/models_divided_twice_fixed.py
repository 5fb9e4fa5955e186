"""Local SGD: no gradient is combined; the ranks average their parameters in every third step."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    exchanged = []  # what this rank gave, and what it got

    for step, window in enumerate(windows, 1):
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            for parameter in model.parameters():
                given = parameter.detach().clone()
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
                exchanged.append((given, parameter.detach().clone()))
