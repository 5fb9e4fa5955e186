"""Anomaly detection: it names the forward of a NaN, and hooks run under it."""

import warnings

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with warnings.catch_warnings(record=True) as caught, torch.autograd.detect_anomaly():
    warnings.simplefilter("always")
    for step in range(6):
        optimizer.zero_grad()
        outputs = model(torch.ones(2, 4))
        if step == 3:
            outputs = outputs * 0
        try:
            outputs.sqrt().sum().backward()
        except RuntimeError as error:
            print(str(error)[:50])
            model.weight.data.abs_()
            continue
        optimizer.step()
print(len(caught), model.weight.tolist())
