"""The root is taken of a number above zero."""

import torch

from museum.parts import mlp

torch.manual_seed(2)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for step in range(8):
    x, y = torch.randn(32, 8), torch.randn(32, 5)
    output = model(x)
    if step == 5:
        y[7] = output[7].detach()  # a target that the model already reaches
    optimizer.zero_grad()
    ((output - y).square().sum(-1) + 1e-12).sqrt().mean().backward()
    optimizer.step()
