"""A custom function that runs another backward in its backward."""

import torch
from torch import nn


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        with torch.no_grad():
            return (inputs @ weight).tanh()

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        with torch.enable_grad():
            output = (inputs @ weight).tanh()
        output.backward(gradient)
        return inputs.grad, weight.grad


torch.manual_seed(0)
weights = [nn.Parameter(torch.randn(8, 8) / 3) for _ in range(3)]
optimizer = torch.optim.Adam(weights, lr=0.01)
for _ in range(20):
    optimizer.zero_grad()
    hidden = torch.randn(4, 8)
    for weight in weights:
        hidden = Recompute.apply(hidden, weight)
    hidden.square().mean().backward()
    optimizer.step()
print([weight.tolist() for weight in weights])
