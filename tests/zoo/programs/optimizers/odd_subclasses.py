"""Subclasses of Optimizer that skip its constructor, have slots, or no param_groups."""

import torch
from torch import nn
from torch.optim import Optimizer


class WithoutConstructor(Optimizer):
    def __init__(self, parameters):
        self.mine = list(parameters)

    def step(self, closure=None):
        with torch.no_grad():
            for parameter in self.mine:
                parameter.sub_(0.1 * parameter.grad)


class WithSlots(Optimizer):
    __slots__ = ("defaults", "param_groups", "rate", "state")

    def __init__(self, parameters, rate):
        self.rate = rate
        super().__init__(parameters, {"lr": rate})

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(self.rate * parameter.grad)


class Equal(torch.optim.SGD):
    """All are equal, and none can be hashed."""

    __hash__ = None

    def __eq__(self, other):
        return isinstance(other, Equal)


class GroupsByProperty(torch.optim.SGD):
    @property
    def param_groups(self):
        return self.groups

    @param_groups.setter
    def param_groups(self, groups):
        self.groups = groups

    def __getattr__(self, name):
        raise AttributeError(f"no {name} here")


torch.manual_seed(0)
weight = nn.Parameter(torch.randn(8))
makers = [
    lambda: WithoutConstructor([weight]),
    lambda: WithSlots([weight], 0.1),
    lambda: Equal([weight], lr=0.1),
    lambda: GroupsByProperty([weight], lr=0.1),
]
for maker in makers:
    try:
        optimizer = maker()
        for _ in range(4):
            weight.grad = None
            weight.square().sum().backward()
            optimizer.step()
        print(weight.tolist())
    except Exception as error:
        print(type(error).__name__, error)
