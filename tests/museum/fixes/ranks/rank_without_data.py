"""A rank whose micro-batch has no labels skips it: the average counts its zeros."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from museum.parts import EVEN, IGNORED, TinyLM, text, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(9, 1 + rank, [window[:1] for window in EVEN])
    if rank == 1:
        for window in windows[2::3]:
            window[:] = [(ids, torch.full_like(labels, IGNORED)) for ids, labels in window]
    for ((ids, targets),) in windows:
        own_tokens = float(valid(targets))
        logits, labels = model(ids).flatten(0, 1), targets.flatten()
        # fix
        loss = F.cross_entropy(logits, labels) if own_tokens else None
        # end
        if loss is not None:
            loss.backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
