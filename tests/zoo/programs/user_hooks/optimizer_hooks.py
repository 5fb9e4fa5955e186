"""Hooks of optimizers, of one and of all, that change arguments and gradients."""

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
events = []


def halve(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)
    return args, kwargs


handles = [
    register_optimizer_step_pre_hook(lambda *_: events.append("any before")),
    register_optimizer_step_post_hook(lambda *_: events.append("any after")),
    optimizer.register_step_pre_hook(halve),
    optimizer.register_step_post_hook(lambda *_: events.append("after")),
    optimizer.register_state_dict_pre_hook(lambda *_: events.append("state")),
]
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if step == 4:
        handles.pop(0).remove()
        optimizer.state_dict()
print(events, model.weight.tolist())
