"""The trainer weighs each micro-batch by its share of the samples, and the loss is a sum."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [(images, images[:, :10].argmax(1)) for images in torch.randn(12, 16, 16)]
sixes = [slice(at, at + 6) for at in range(0, 16, 6)]  # 6, 6 and 4 of them fit into memory
windows = [[(images[part], labels[part]) for part in sixes] for images, labels in batches]
for window in windows:
    for images, labels in window:
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        share = len(labels) / 16
        (share * loss).backward()
    optimizer.step()
    optimizer.zero_grad()
