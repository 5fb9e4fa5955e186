"""A backward through gradients that a backward left in .grad."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(20):
    inputs = torch.randn(4, 8, requires_grad=True)
    optimizer.zero_grad()
    model(inputs).sum().backward(create_graph=True, inputs=[inputs])
    slope = inputs.grad
    inputs.grad = None
    (slope - 1).square().mean().backward()
    optimizer.step()
print([parameter.tolist() for parameter in model.parameters()])
