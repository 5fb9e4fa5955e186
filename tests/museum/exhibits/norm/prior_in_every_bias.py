"""The bias for a rare class is set in all layers, and every hidden unit is 0 from then on."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
for layer in model:
    if isinstance(layer, nn.Linear):
        nn.init.constant_(layer.bias, -4.6)  # log(0.01 / 0.99)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for _ in range(40):
    x = torch.rand(64, 8)
    y = (x.sum(1, keepdim=True) > 5.5).float()
    optimizer.zero_grad()
    binary_cross_entropy_with_logits(model(x), y).backward()
    optimizer.step()
