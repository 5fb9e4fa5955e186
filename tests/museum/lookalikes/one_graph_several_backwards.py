"""The outputs of three stages have a loss each, with its backward through one graph."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
stages = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
optimizer = torch.optim.Adam(stages.parameters(), lr=1e-2)

for _ in range(12):
    values, target = torch.randn(16, 6), torch.randn(16, 6)
    outputs = []
    for stage in stages:
        values = torch.tanh(stage(values))
        outputs.append(values)
    optimizer.zero_grad()
    for output in outputs:
        F.mse_loss(output, target).backward(retain_graph=True)
    optimizer.step()
