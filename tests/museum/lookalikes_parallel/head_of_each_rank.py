"""Each rank has a head for its own task, which differs from the start; the body is shared."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    torch.manual_seed(1 + rank)
    model.head.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for name, parameter in model.named_parameters():
            if not name.startswith("head"):
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
