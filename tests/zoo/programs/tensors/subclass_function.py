"""A tensor subclass with __torch_function__ that logs every call it sees."""

import torch
from torch import nn

calls = []


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class LoggedParameter(Logged, nn.Parameter):
    pass


torch.manual_seed(0)
weight = torch.randn(8).as_subclass(LoggedParameter).requires_grad_()
optimizer = torch.optim.SGD([weight], lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    loss = (weight * torch.randn(8).as_subclass(Logged)).square().sum()
    loss.backward()
    optimizer.step()
calls, recorded = [], calls
print(len(recorded), recorded)
print(weight.as_subclass(torch.Tensor).tolist())
