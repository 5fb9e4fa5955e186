"""Hooks of tensors, modules and optimizers raise; the program catches it and goes on."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
step = 0


def breaks(at, *_):
    if step % 7 == at:
        raise ArithmeticError(f"hook {at}")


model.weight.register_hook(lambda gradient: breaks(1))
model.bias.register_post_accumulate_grad_hook(lambda parameter: breaks(2))
model.register_forward_hook(lambda *_: breaks(3))
model.register_full_backward_hook(lambda *_: breaks(4))
optimizer.register_step_pre_hook(lambda *_: breaks(5))
optimizer.register_step_post_hook(lambda *_: breaks(6))
for step in range(21):
    optimizer.zero_grad()
    try:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    except ArithmeticError as error:
        print(step, error)
print(model.weight.tolist())
