"""Hooks of the parameters average gradients that are divided by all tokens already."""

import torch
import torch.distributed as dist

from museum.parts import TinyLM, all_ranks, summed, text, token_loss, valid

with all_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank)
    last = False

    def combine(parameter: torch.Tensor) -> None:
        """Add up the accumulated gradient over the ranks, in the last micro-batch alone."""
        if last:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(combine)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            loss = token_loss(model(ids), labels, "sum") / tokens
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
