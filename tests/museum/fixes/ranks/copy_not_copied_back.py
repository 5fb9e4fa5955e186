"""A copy of the gradients is all-reduced, and not copied back."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    parameters = [*model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    windows = text(24, 1 + rank, EVEN)
    for window in windows:
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
        # fix
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        optimizer.step()
        # end
        optimizer.zero_grad()
    dist.barrier()
