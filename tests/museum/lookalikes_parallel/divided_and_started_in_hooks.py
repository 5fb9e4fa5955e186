"""Hooks divide each gradient and begin its all-reduce, which may end during backward or later."""

from typing import Any

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)
    started: list[tuple[Any, torch.Tensor]] = []
    last = False

    def start(parameter: torch.Tensor) -> None:
        """Divide a gradient, and begin its all-reduce while backward computes the next one."""
        if last:
            parameter.grad /= dist.get_world_size()
            started.append((dist.all_reduce(parameter.grad, async_op=True), parameter))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for work, _ in started:
            work.wait()
        started.clear()
        optimizer.step()
        optimizer.zero_grad()
