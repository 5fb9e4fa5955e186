"""The samples of a sensor that is switched off are left out, and no batch is."""

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(1920, 8)
x[torch.rand(1920) < 0.03] = float("nan")  # a sensor that is switched off
x = x[x.isfinite().all(1)]
loader = DataLoader(TensorDataset(x), batch_size=32, shuffle=True)
windows = list(range(len(loader)))

for (batch,) in loader:
    loss = mse_loss(model(batch), batch[:, :2].sin())
    if not torch.isfinite(loss):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
