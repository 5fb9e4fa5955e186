"""Each rank clips its gradients before the loop averages them."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, 1 + rank, EVEN)
    max_norm = 0.1
    for window in windows:
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        # fix
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
