"""All parameters are averaged, also those that are frozen at first."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    model.embed.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=1.0)
    averaged = list(model.parameters())

    for number, window in enumerate(text(24, seed=1 + rank, lengths=EVEN)):
        if number == 12:
            model.embed.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.embed.parameters())})
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        for parameter in averaged:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
