"""Exponential and stochastic weight averaging, and an EMA written by hand."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
by_hand = copy.deepcopy(model)
averaged, ema = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = SWALR(optimizer, 0.01)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    ema.update_parameters(model)
    with torch.no_grad():
        for mine, theirs in zip(by_hand.parameters(), model.parameters()):
            mine.lerp_(theirs, 0.1)
    if step > 10:
        averaged.update_parameters(model)
update_bn([torch.ones(4, 8), torch.zeros(4, 8)], averaged)
print([parameter.tolist() for parameter in by_hand.parameters()])
print([parameter.tolist() for parameter in averaged.parameters()])
print([parameter.tolist() for parameter in ema.parameters()])
