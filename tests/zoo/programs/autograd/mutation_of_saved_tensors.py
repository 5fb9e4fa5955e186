"""Saved tensors may be changed in place, and their versions are printed."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with torch.autograd.graph.allow_mutation_on_saved_tensors():
    for _ in range(6):
        optimizer.zero_grad()
        hidden = model(torch.randn(4, 8))
        outputs = hidden.sin()
        hidden.zero_()
        outputs.square().mean().backward()
        optimizer.step()
print(model.weight._version, model.weight.grad._version, model.weight.tolist())
