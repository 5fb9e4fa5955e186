"""The gradients of a probe are synchronised and discarded, those of the window never are."""

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        ids, labels = window[0]
        token_loss(model(ids), labels).backward()  # how large is a gradient?
        size = sum(float(parameter.grad.norm()) for parameter in model.parameters())
        optimizer.zero_grad()
        with model.no_sync():
            for ids, labels in window:
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
