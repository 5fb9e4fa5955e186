"""From the second epoch on, batch norm is frozen on purpose; the rest of the model trains."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(5):
    model.train()
    if epoch > 0:
        model[1].eval()
    for _ in range(16):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
