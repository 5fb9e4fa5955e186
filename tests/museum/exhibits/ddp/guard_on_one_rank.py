"""A guard looks at the rank's own loss: one rank drops the step that the other takes."""

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for ids, labels in (batch for window in windows for batch in window):
        loss = token_loss(model(ids), labels)
        loss.backward()
        if loss.item() < 3.15:
            optimizer.step()
        optimizer.zero_grad()
