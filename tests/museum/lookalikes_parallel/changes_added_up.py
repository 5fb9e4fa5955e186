"""Local SGD on a loss over the tokens of all ranks: every second step, the changes are added up."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    common = [parameter.detach().clone() for parameter in model.parameters()]
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for step, window in enumerate(windows, 1):
        ranks = dist.get_world_size()
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window) / ranks
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            for parameter, start in zip(model.parameters(), common, strict=True):
                change = parameter.detach() - start
                dist.all_reduce(change)
                parameter.data.copy_(start + change)
                start.copy_(parameter.data)
