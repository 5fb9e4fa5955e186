"""Two ranks norm their own rows, and hold halves of a layer; micro-batch means count the same."""

import torch
import torch.distributed as dist

from museum.parts import RowsInParts, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    plain = RowsInParts().double()
    model = RowsInParts(rank)
    model.load_state_dict(plain.state_dict(), strict=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for parameter in model.norm.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
