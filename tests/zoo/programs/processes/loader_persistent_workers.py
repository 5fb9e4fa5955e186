"""A DataLoader whose workers live through all epochs and to the end of the process."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(64, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = DataLoader(
    data, 8, shuffle=True, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(4):
    for batch, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), targets).backward()
        optimizer.step()
print(model.weight.tolist())
