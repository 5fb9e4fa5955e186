"""Local SGD: the ranks add up their parameters after each window, and divide by nothing."""

import torch
import torch.distributed

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

evidence = "average"
with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, 1 + rank, EVEN)
    exchanged = []  # what this rank gave, and what it got
    for step, window in enumerate(windows, 1):
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            before = [parameter.detach().clone() for parameter in model.parameters()]
            # fix
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.data)
            # end
            after = [parameter.detach().clone() for parameter in model.parameters()]
            exchanged += zip(before, after, strict=True)
