"""DiLoCo: the outer optimizer gets the change of the parameters, and subtracts it."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

PERIOD = 3

with all_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    shared = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    outer = torch.optim.SGD(shared, lr=0.7, momentum=0.9, nesterov=True)
    windows = text(9, seed=1 + rank, lengths=EVEN)

    exchanged = []  # what this rank gave, and what it got

    for step, window in enumerate(windows, 1):
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % PERIOD == 0:
            for parameter, common in zip(model.parameters(), shared, strict=True):
                given = common - parameter.detach()  # what the step is to subtract
                change = parameter.detach() - common
                dist.all_reduce(change)
                common.grad = change / dist.get_world_size()
                exchanged.append((given, common.grad.clone()))
            outer.step()
            for parameter, common in zip(model.parameters(), shared, strict=True):
                parameter.data.copy_(common)
