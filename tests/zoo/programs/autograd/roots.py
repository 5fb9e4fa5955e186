"""Backward from tuples, lists and single tensors, with and without grad_tensors."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    first, second, third = model(torch.randn(4, 8)).square().mean(0)
    torch.autograd.backward((first, second), retain_graph=True)
    torch.autograd.backward([third], [torch.tensor(0.5)], retain_graph=True)
    torch.autograd.backward(first, torch.tensor(2.0), retain_graph=True)
    torch.autograd.backward((second, third), (torch.tensor(1.0), None), True)
    torch.autograd.backward(tensors=(first,), grad_tensors=None, inputs=model.weight)
    optimizer.step()
outputs = model(torch.ones(2, 8))
outputs.backward(torch.full_like(outputs, 0.25))
optimizer.step()
print(model.weight.tolist())
