"""Local SGD: the ranks average their models by samples, of which all are planned."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(8, seed=1 + rank, lengths=EVEN)

    planned = 48  # samples between two averages, of both ranks

    exchanged = []  # what this rank gave, and what it got

    samples = 0
    for step, window in enumerate(windows, 1):
        samples += sum(len(ids) for ids, _ in window)
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            for parameter in model.parameters():
                given = parameter.detach().clone()
                parameter.data *= samples
                dist.all_reduce(parameter.data)
                parameter.data /= planned
                exchanged.append((given, parameter.detach().clone()))
            samples = 0
