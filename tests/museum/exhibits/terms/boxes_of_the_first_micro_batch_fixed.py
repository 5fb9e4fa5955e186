"""The boxes of the whole window are counted before its first backward."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(72)
model = mlp(8, 16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = []

for _ in range(10):
    counts = torch.randint(1, 13, (4,)).tolist()
    window = [(torch.randn(count, 8), torch.rand(count, 4)) for count in counts]
    count = sum(len(boxes) for _, boxes in window)
    for matched, boxes in window:
        distance = F.l1_loss(model(matched), boxes, reduction="none")
        loss = 5 * distance.sum() / count
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
