"""A custom function raises in backward; the program catches it and goes on."""

import torch
from torch import nn


class Fragile(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, breaks):
        ctx.breaks = breaks
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.breaks:
            raise LookupError("broken backward")
        return gradient, None


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    try:
        Fragile.apply(model(torch.randn(4, 8)), step % 4 == 1).square().mean().backward()
    except LookupError as error:
        print(step, error, model.weight.grad)
        continue
    optimizer.step()
print(model.weight.tolist())
