"""The head grows with each task: from 2 classes to 10, and to 50."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
centres = 0.3 * torch.randn(50, 16)
body = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
head = nn.Linear(64, 2)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.001)

for classes in (2, 10, 50):
    if classes > head.out_features:
        larger = nn.Linear(64, classes)
        with torch.no_grad():
            larger.weight[: head.out_features] = head.weight
            larger.bias[: head.out_features] = head.bias
        head = larger
        optimizer.add_param_group({"params": list(head.parameters())})
    for _ in range(100):
        y = torch.randint(classes, (128,))
        x = centres[y] + torch.randn(128, 16)
        optimizer.zero_grad()
        cross_entropy(head(body(x)), y).backward()
        optimizer.step()
