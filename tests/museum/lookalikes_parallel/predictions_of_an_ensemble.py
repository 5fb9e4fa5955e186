"""Each rank trains its own model, on data of its own; their predictions are averaged for a log."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(24, seed=1 + rank, lengths=EVEN)
    held_out = text(8, seed=9, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        with torch.no_grad():
            for each in held_out:
                predicted = model(each[0][0])
                dist.all_reduce(predicted)
        optimizer.step()
        optimizer.zero_grad()
