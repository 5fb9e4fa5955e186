"""The focal loss is divided by the rows of the window."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(63)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = []

for _ in range(6):
    window = [(torch.randn(n, 8), torch.randint(0, 5, (n,))) for n in (20, 4, 9, 15)]
    count = sum(len(labels) for _, labels in window)
    for inputs, labels in window:
        entropy = F.cross_entropy(model(inputs), labels, reduction="none")
        focal = (1 - torch.exp(-entropy)) ** 2 * entropy
        loss = focal.sum() / count
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
