"""Every optimizer that torch has, with foreach and fused where there is such a thing."""

import inspect

import torch
from torch import nn

kinds = [
    kind
    for name, kind in sorted(vars(torch.optim).items())
    if inspect.isclass(kind)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")
]
for kind in kinds:
    for options in ({}, {"foreach": True}, {"fused": True}, {"differentiable": True}):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(4, 4))
        try:
            optimizer = kind([weight], lr=0.01, **options)
            for _ in range(4):
                optimizer.zero_grad()
                weight.square().sum().backward()
                if options.get("differentiable"):
                    with torch.no_grad():
                        optimizer.step()
                else:
                    optimizer.step()
        except (TypeError, RuntimeError, ValueError) as error:
            print(kind.__name__, options, type(error).__name__)
            continue
        print(kind.__name__, options, weight.tolist())
