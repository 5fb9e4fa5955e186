"""An all-reduce of one buffer, for which a hook of the step waits: gradients are averaged."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    def wait(optimizer, args, kwargs):
        work.wait()
        flat.div_(dist.get_world_size())
        parts = flat.split([parameter.numel() for parameter in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter))

    optimizer.register_step_pre_hook(wait)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        work = dist.all_reduce(flat, async_op=True)
        optimizer.step()
        optimizer.zero_grad()
