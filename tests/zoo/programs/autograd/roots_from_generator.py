"""Backward from a generator of losses: it can be read only once."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    losses = model(torch.randn(4, 8)).square().mean(0).unbind()
    torch.autograd.backward(loss for loss in losses)
    optimizer.step()
    optimizer.zero_grad()
    losses = iter(model(torch.randn(4, 8)).square().mean(0).unbind())
    torch.autograd.backward(losses, iter([torch.tensor(1.0)] * 3), retain_graph=False)
    optimizer.step()
print(model.weight.tolist())
