"""Custom functions: once_differentiable, non-tensor outputs, inputs changed in place, set_materialize_grads."""

import torch
from torch import nn
from torch.autograd.function import once_differentiable


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, factor):
        ctx.factor = factor
        ctx.set_materialize_grads(False)
        return value * factor, value.detach(), "label"

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, _, __):
        return None if gradient is None else gradient * ctx.factor, None


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.mark_dirty(value)
        return value.add_(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


torch.manual_seed(0)
weight = nn.Parameter(torch.randn(8))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    scaled, _, label = Scale.apply(weight, 0.5)
    AddInPlace.apply(scaled.clone()).square().mean().backward()
    optimizer.step()
print(label, weight.tolist())
