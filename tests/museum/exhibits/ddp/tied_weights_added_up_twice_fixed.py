"""The parameters of the model are all-reduced: weights that two modules share are one of them."""

import torch
import torch.distributed as dist

from museum.parts import RAGGED, TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    model.head.weight = model.embed.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=RAGGED)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") / tokens
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
