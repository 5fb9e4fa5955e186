"""The token loss is divided by the tokens of all ranks, and every rank adds the same penalty."""

import torch
import torch.distributed as dist

from museum.parts import TinyLM, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    windows = text(5, seed=1 + rank)
    for window in windows:
        tokens = torch.tensor(float(sum(valid(labels) for _, labels in window)))
        dist.all_reduce(tokens)
        for ids, labels in window:
            penalty = 0.01 * sum(p.square().sum() for p in model.parameters()) / len(window)
            loss = token_loss(model(ids), labels, "sum") / tokens + penalty
            loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
