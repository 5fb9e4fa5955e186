"""Prototypical networks: a step averages the losses of four tasks with 3 to 7 classes each."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(21)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
SHOTS, QUERIES, TASKS = 5, 5, 4

for _ in range(6):
    for _ in range(TASKS):
        classes = int(torch.randint(3, 8, ()))
        centres = 2 * torch.randn(classes, 1, 6)
        prototypes = model(centres + torch.randn(classes, SHOTS, 6)).mean(1)
        queries = model((centres + torch.randn(classes, QUERIES, 6)).flatten(0, 1))
        labels = torch.arange(classes).repeat_interleave(QUERIES)
        loss = F.cross_entropy(-(torch.cdist(queries, prototypes) ** 2), labels)
        (loss / TASKS).backward()
    optimizer.step()
    optimizer.zero_grad()
