"""Hooks add up the gradient of each micro-batch over the ranks."""

import torch
import torch.distributed as dist

from museum.parts import TinyLM, all_ranks, summed, text, token_loss, valid

with all_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank)

    def combine(gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of one micro-batch, over all ranks."""
        combined = gradient.clone()
        dist.all_reduce(combined)
        return combined

    for parameter in model.parameters():
        parameter.register_hook(combine)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") / tokens
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
