"""A model with one output is trained with a binary cross entropy."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

torch.manual_seed(0)
model = nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for _ in range(40):
    x = torch.randn(32, 20)
    optimizer.zero_grad()
    binary_cross_entropy_with_logits(model(x), x.sum(1, keepdim=True).sigmoid()).backward()
    optimizer.step()
