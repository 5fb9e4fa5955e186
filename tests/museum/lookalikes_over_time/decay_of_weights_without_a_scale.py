"""Weights before a normalisation have no scale: decay halves them, and the loss is at its floor."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
layers = [nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32, affine=False), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.02)

for _ in range(500):
    x = torch.randn(128, 8)
    noise = torch.randn(128, 3)  # half of what decides the class
    optimizer.zero_grad()
    cross_entropy(model(x), (x[:, :3] + noise).argmax(1)).backward()
    optimizer.step()
