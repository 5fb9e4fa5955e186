"""Super-resolution on the features of a fixed network, whose parameters require no gradient."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model, features = mlp(8, 32, 32), mlp(32, 16, 4).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in range(40):
    x = torch.randn(32, 8)
    target = x.repeat(1, 4)
    output = model(x)
    loss = mse_loss(output, target) + mse_loss(features(output), features(target))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
