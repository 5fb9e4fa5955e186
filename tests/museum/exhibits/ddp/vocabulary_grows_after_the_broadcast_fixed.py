"""The head gets its new weights before the parameters are made equal."""

import torch
import torch.distributed as dist
from torch import nn

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks


def grow(model: TinyLM, more: int) -> None:
    """Give the head outputs for new tokens; the old ones keep their weights."""
    old = model.head
    model.head = nn.Linear(old.in_features, old.out_features + more)
    with torch.no_grad():
        model.head.weight[: old.out_features] = old.weight
        model.head.bias[: old.out_features] = old.bias


with two_ranks() as rank:
    torch.manual_seed(rank)
    model = TinyLM()
    grow(model, 8)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
