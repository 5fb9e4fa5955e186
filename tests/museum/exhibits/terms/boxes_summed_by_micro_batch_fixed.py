"""The box loss is divided by the boxes of the window."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(72)
model = mlp(8, 16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = []

for step in range(6):
    counts = [(3, 1), (9, 12), (2, 2), (5, 6)] if step % 2 else [(7, 4), (1, 1), (10, 8), (2, 3)]
    window = [(torch.randn(sum(boxes), 8), torch.rand(sum(boxes), 4)) for boxes in counts]
    num_boxes = sum(len(boxes) for _, boxes in window)
    for matched, boxes in window:
        distance = F.l1_loss(model(matched), boxes, reduction="none")
        loss = 5 * distance.sum() / num_boxes
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
