"""A group with a rate of 0 on purpose: its parameters are frozen. The others warm up from 0."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = nn.ModuleDict({"encoder": mlp(8, 16, 16), "middle": nn.Linear(16, 16)})
model["head"] = nn.Linear(16, 2)
model["encoder"].requires_grad_(False)
rates = {"encoder": 0.0, "middle": 0.001, "head": 0.01}
groups = [{"params": model[name].parameters(), "lr": rate} for name, rate in rates.items()]
optimizer = torch.optim.AdamW(groups)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 15))

for _ in range(80):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    out = model["head"](model["middle"](model["encoder"](x)).relu())
    cross_entropy(out, (x[:, 0] * x[:, 1] > 0).long()).backward()
    optimizer.step()
    schedule.step()
