"""The trainer weighs each micro-batch by its share of the samples, and the loss is a sum."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    images = torch.randn(16, 16)
    labels = images[:, :10].argmax(1)
    for at in range(0, 16, 6):  # 6, 6 and 4 of them fit into memory
        part = slice(at, at + 6)
        loss = F.cross_entropy(model(images[part]), labels[part], reduction="sum")
        share = len(labels[part]) / len(labels)
        (share * loss).backward()
    optimizer.step()
    optimizer.zero_grad()
