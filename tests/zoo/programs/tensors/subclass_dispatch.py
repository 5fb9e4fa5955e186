"""A wrapper subclass with __torch_dispatch__, as parameter, gradient and loss; it counts operators."""

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

operators = []


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, strides=inner.stride()
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        operators.append(str(func))
        args, kwargs = tree_map_only(Wrapped, lambda tensor: tensor.inner, (args, kwargs or {}))
        result = func(*args, **kwargs)
        if func in (torch.ops.aten.add_.Tensor, torch.ops.aten.zero_.default):
            return args[0]
        return tree_map_only(torch.Tensor, Wrapped, result)


torch.manual_seed(0)
weight = nn.Parameter(Wrapped(torch.randn(8)))
optimizer = torch.optim.SGD([weight], lr=0.05, foreach=False)
for _ in range(4):
    weight.grad = None
    loss = (weight * weight).sum()
    loss.backward()
    optimizer.step()
recorded = list(operators)
print(type(loss).__name__, type(weight.grad).__name__, len(recorded), recorded)
print(weight.inner.tolist())
