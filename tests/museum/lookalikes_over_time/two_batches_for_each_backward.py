"""MixUp of two batches: each backward takes two that were drawn."""

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(torch.randn(1280, 8)), batch_size=16, shuffle=True)

batches = iter(loader)
for (first,), (second,) in zip(batches, batches, strict=True):
    x = 0.7 * first + 0.3 * second
    optimizer.zero_grad()
    mse_loss(model(x), x[:, :2].sin()).backward()
    optimizer.step()
