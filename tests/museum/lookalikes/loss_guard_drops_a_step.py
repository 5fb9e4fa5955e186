"""A guard drops a micro-batch whose loss is far above the usual, after its backward."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
usual = None
for step in range(40):
    x = torch.randn(16, 12) * (8 if step % 9 == 5 else 1)
    loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    if usual is not None and loss.item() > 4 * usual:
        optimizer.zero_grad()  # an outlier: do not step on it
        continue
    usual = loss.item() if usual is None else 0.9 * usual + 0.1 * loss.item()
    optimizer.step()
    optimizer.zero_grad()
