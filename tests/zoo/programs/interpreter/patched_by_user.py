"""The program wraps backward and step itself, restores them in every order, and counts calls."""

import functools

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(steps=10):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


calls = []


def counted(name, function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        calls.append(name)
        return function(*args, **kwargs)

    return wrapper


tensor_backward, autograd_backward = torch.Tensor.backward, torch.autograd.backward
init, step = torch.optim.Optimizer.__init__, torch.optim.Adam.step
train(2)
torch.Tensor.backward = counted("Tensor.backward", tensor_backward)
torch.autograd.backward = counted("autograd.backward", autograd_backward)
torch.optim.Optimizer.__init__ = counted("__init__", init)
torch.optim.Adam.step = counted("step", step)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
train(2)
torch.autograd.backward = autograd_backward
train(2)
torch.Tensor.backward, torch.optim.Adam.step = tensor_backward, step
torch.optim.Optimizer.__init__ = init
train(2)
print(torch.autograd.backward is autograd_backward, calls, model.weight.tolist())
