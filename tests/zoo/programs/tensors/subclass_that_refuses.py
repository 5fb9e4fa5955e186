"""A loss and gradients that refuse to be converted to numbers."""

import torch
from torch import nn


class Opaque(torch.Tensor):
    def __float__(self):
        raise TypeError("not a number")

    def item(self):
        raise TypeError("not a number")

    def tolist(self):
        raise TypeError("not a list")

    def detach(self):
        raise TypeError("not detachable")

    def __bool__(self):
        raise TypeError("neither true nor false")

    def __eq__(self, other):
        raise TypeError("not comparable")

    __hash__ = torch.Tensor.__hash__


torch.manual_seed(0)
weight = nn.Parameter(torch.randn(8))
optimizer = torch.optim.SGD([weight], lr=0.05)
for _ in range(6):
    optimizer.zero_grad()
    loss = weight.square().sum().as_subclass(Opaque)
    loss.backward()
    weight.grad = weight.grad.as_subclass(Opaque)
    optimizer.step()
print(type(loss).__name__, weight.as_subclass(torch.Tensor).tolist())
