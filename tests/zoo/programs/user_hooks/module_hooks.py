"""All hooks that a module takes, those of all modules too, and their order."""

import torch
from torch import nn
from torch.nn.modules import module as every

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
events = []


def note(name):
    return lambda module, *_: events.append((name, type(module).__name__))


for layer in model:
    layer.register_forward_pre_hook(note("before"))
    layer.register_forward_hook(note("after"))
    layer.register_full_backward_pre_hook(note("before backward"))
    layer.register_full_backward_hook(note("after backward"))
model.register_state_dict_pre_hook(lambda module, prefix, keep: events.append("state"))
model.register_load_state_dict_post_hook(lambda module, keys: events.append("loaded"))
handles = [
    every.register_module_forward_pre_hook(note("any before")),
    every.register_module_forward_hook(note("any after")),
    every.register_module_full_backward_hook(note("any backward")),
    every.register_module_parameter_registration_hook(
        lambda module, name, parameter: events.append(("parameter", name))
    ),
]
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8, requires_grad=True)).square().mean().backward()
    optimizer.step()
nn.Linear(2, 2)
for handle in handles:
    handle.remove()
model.load_state_dict(model.state_dict())
for event in events:
    print(event)
print(model[0].weight.tolist())
