"""Gradients are moved into buffers after every micro-batch, and the buffers are all-reduced."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    main_grad = {p: torch.zeros_like(p) for p in model.parameters()}

    for window in text(6, seed=1 + rank, lengths=EVEN):
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
            for p, buffer in main_grad.items():
                buffer += p.grad
                p.grad = None
        for p, buffer in main_grad.items():
            dist.all_reduce(buffer)
            p.grad = buffer / dist.get_world_size()
            buffer.zero_()
        optimizer.step()
        optimizer.zero_grad()
