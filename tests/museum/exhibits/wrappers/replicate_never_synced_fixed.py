"""replicate(), whose synchronisation is switched on for the last micro-batch."""

import torch
from torch.distributed._composable.replicate import replicate

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    replicate(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            model.set_requires_gradient_sync(i == len(window) - 1)
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
