"""The parameters to average are chosen while the embedding is frozen; it is trained later."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    model.embed.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=1.0)
    averaged = [p for p in model.parameters() if p.requires_grad]

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
