"""Hooks on tensors that replace gradients, count, remove themselves and retain gradients."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
events = []
model.weight.register_hook(lambda gradient: gradient * 0.5)
model.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
model.bias.register_hook(lambda gradient: events.append(tuple(gradient.shape)))
for _ in range(6):
    optimizer.zero_grad()
    hidden = model(torch.randn(4, 8))
    hidden.retain_grad()
    handle = hidden.register_hook(lambda gradient: (events.append("hidden"), handle.remove())[-1])
    loss = hidden.square().mean()
    loss.register_hook(lambda gradient: events.append(float(gradient)))
    loss.grad_fn.register_prehook(lambda gradients: events.append(len(gradients)))
    loss.grad_fn.register_hook(lambda gradients, _: events.append(len(gradients)))
    loss.backward()
    events.append(round(float(hidden.grad.sum()), 6))
    optimizer.step()
print(events, model.weight.tolist())
