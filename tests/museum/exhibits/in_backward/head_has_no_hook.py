"""Hooks average the gradients of each backward; the head's weights have none."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    def combine(gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of one backward, over all ranks."""
        combined = gradient.clone()
        dist.all_reduce(combined)
        return combined / dist.get_world_size()

    for name, parameter in model.named_parameters():
        if name != "head.weight":
            parameter.register_hook(combine)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
