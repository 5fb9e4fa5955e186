"""The loop steps before the asynchronous all-reduce has ended."""

import time

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(8, 1 + rank, EVEN)
    for window in windows:
        for ids, labels in window:
            (token_loss(model(ids), labels) / (len(window) * dist.get_world_size())).backward()
        time.sleep(0.01 * rank)  # one rank is later than the other
        # fix
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        optimizer.step()
        for work in works:
            work.wait()
        # end
        optimizer.zero_grad()
    dist.barrier()
