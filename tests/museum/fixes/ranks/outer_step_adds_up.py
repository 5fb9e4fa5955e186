"""DiLoCo: local steps, then an outer optimizer on the summed change of the parameters."""

import torch
import torch.distributed

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

evidence = "average"
with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    outer_parameters = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    outer_optimizer = torch.optim.SGD(outer_parameters, lr=0.7, momentum=0.9, nesterov=True)
    windows = text(9, 1 + rank, EVEN)
    exchanged = []  # what this rank gave, and what it got
    for step, window in enumerate(windows, 1):
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            for parameter, common in zip(model.parameters(), outer_parameters, strict=True):
                common.grad = common - parameter.detach()
            before = [common.grad.clone() for common in outer_parameters]
            # fix
            for parameter in outer_parameters:
                torch.distributed.all_reduce(parameter.grad)
            outer_optimizer.step()
            # end
            after = [common.grad.clone() for common in outer_parameters]
            exchanged += zip(before, after, strict=True)
            for parameter, common in zip(model.parameters(), outer_parameters, strict=True):
                parameter.data.copy_(common)
