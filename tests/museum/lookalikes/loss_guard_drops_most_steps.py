"""Only batches with a small loss are stepped on, which are few: no K explains the windows."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(60):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    loss.backward()
    if loss.item() < 1.08:
        optimizer.step()
