"""Schedulers of every kind, chained, custom ones defined here, and one that is called wrongly."""

import warnings

import torch
from torch import nn
from torch.optim import lr_scheduler


class Zigzag(lr_scheduler.LRScheduler):
    def get_lr(self):
        return [base * (1 + self.last_epoch % 3) for base in self.base_lrs]


class Plain:
    """No LRScheduler at all."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.9


torch.manual_seed(0)
weight = nn.Parameter(torch.randn(8))
makers = [
    Zigzag,
    Plain,
    lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(o, 2), Zigzag(o)]),
    lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2, cycle_momentum=False),
]
for maker in makers:
    optimizer = torch.optim.SGD([weight], lr=0.05)
    scheduler = maker(optimizer)
    for _ in range(6):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
        scheduler.step()
    print(optimizer.param_groups[0]["lr"], weight.tolist())
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
for value in (3.0, 3.0, 3.0, 3.0):
    plateau.step(value)
print(optimizer.param_groups[0]["lr"])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    early = Zigzag(torch.optim.SGD([weight], lr=0.1))
    early.step()
    early.step(5)
print([str(warning.message)[:60] for warning in caught])
