"""make_fx of a function with a backward, symbolic tracing, and functionalize."""

import torch
from torch import nn
from torch.func import functionalize
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def gradients(weight, inputs):
    loss = (inputs @ weight).square().mean()
    return torch.autograd.grad(loss, weight)[0]


def with_backward(weight, inputs):
    weight = weight.detach().requires_grad_()
    (inputs @ weight).square().mean().backward()
    return weight.grad


def in_place(value):
    other = value.clone()
    other.add_(1).mul_(2)
    return other


for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    weight = model.weight.detach().t().contiguous().requires_grad_()
    traced = make_fx(gradients)(weight, torch.randn(2, 4))
    also = make_fx(with_backward)(weight, torch.randn(2, 4))
    if step == 0:
        print(traced.code, also.code)
        print(symbolic_trace(model).code)
        print(make_fx(functionalize(in_place))(torch.zeros(2)).code)
print(model.weight.tolist())
