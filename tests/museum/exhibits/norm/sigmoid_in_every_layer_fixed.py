"""Ten layers with a ReLU after each, initialised for it."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

torch.manual_seed(0)
layers = [part for _ in range(10) for part in (nn.Linear(16, 16), nn.ReLU())]
for layer in layers[::2]:
    assert isinstance(layer, nn.Linear)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
model = nn.Sequential(*layers, nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05)

for _ in range(20):
    x = torch.randn(32, 16)
    optimizer.zero_grad()
    mse_loss(model(x), x[:, :2].sin()).backward()
    optimizer.step()
