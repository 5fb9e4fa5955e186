"""Gradual unfreezing: what is unfrozen joins the optimizer."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = nn.Sequential()
model.add_module("body", mlp(8, 32, 32))
model.add_module("head", nn.Linear(32, 3))
model.body.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
trained = [*model.parameters()]
windows = []

for epoch in range(3):
    if epoch == 1:
        model.body.requires_grad_(True)
        optimizer.add_param_group({"params": model.body.parameters(), "lr": 1e-4})
    for _ in range(16):
        x = torch.randn(32, 8)
        windows.append(x)
        model.zero_grad()
        cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
