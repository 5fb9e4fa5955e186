"""Rates by depth: that of the encoder is half of that of the head."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = nn.ModuleDict({"encoder": mlp(8, 16, 16), "head": nn.Linear(16, 2)})
rate, depth = 0.01, 2
groups = [
    {"params": model["encoder"].parameters(), "lr": rate / depth},
    {"params": model["head"].parameters(), "lr": rate},
]
optimizer = torch.optim.AdamW(groups, lr=rate)


def planned(step: int) -> float:
    """Half of the rate of the head, for the encoder."""
    return rate / 2


for _ in range(60):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    out = model["head"](model["encoder"](x).relu())
    cross_entropy(out, (x[:, 0] * x[:, 1] > 0).long()).backward()
    optimizer.step()
