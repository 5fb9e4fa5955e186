"""train() is called at the start of each epoch."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
modes = []

for _epoch in range(5):
    model.train()
    for _ in range(16):
        x = torch.randn(32, 8)
        modes.append(model.training)
        optimizer.zero_grad()
        cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        x = torch.randn(64, 8)
        (model(x).argmax(1) == x[:, :3].argmax(1)).float().mean()
