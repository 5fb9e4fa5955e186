"""Walks the traceback of a failed backward, as error reporters do, and prints the program's frames."""

import traceback

import torch
from torch import nn


def compute(weight):
    loss = weight.square().sum()
    loss.register_hook(lambda gradient: {}["missing"])
    loss.backward()


weight = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    try:
        compute(weight)
    except KeyError as error:
        report = traceback.TracebackException.from_exception(error, capture_locals=True)
        print([frame.name for frame in report.stack if frame.filename == __file__])
        print(error.__context__, error.__cause__, error.__suppress_context__)
    weight.grad = torch.ones(4)
    optimizer.step()
print(weight.tolist())
