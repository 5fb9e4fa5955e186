"""Hooks for several tensors at once, of both modes, and on graph nodes."""

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
events = []
parameters = tuple(model.parameters())
register_multi_grad_hook(parameters, lambda grads: events.append(len(grads)), mode="all")
register_multi_grad_hook(parameters, lambda grad: events.append("any"), mode="any")
for _ in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    edge = torch.autograd.graph.get_gradient_edge(loss)
    edge.node.register_hook(lambda *gradients: events.append("node"))
    loss.backward()
    optimizer.step()
print(events, model.weight.tolist())
