"""SSD: the matched anchors of each micro-batch divide both of its losses, and K."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(81)
body, classes, boxes = nn.Linear(12, 24), nn.Linear(24, 5), nn.Linear(24, 4)
model = nn.ModuleList([body, classes, boxes])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def image():
    """Anchors, their classes (0 is background), and their offsets."""
    labels, count = torch.zeros(40, dtype=torch.long), int(torch.randint(1, 12, ()))
    labels[torch.randperm(40)[:count]] = torch.randint(1, 5, (count,))
    return torch.randn(40, 12), labels, torch.randn(40, 4)


for _ in range(8):
    window = [[image(), image()] for _ in range(4)]
    for images in window:
        matched = sum(int((labels > 0).sum()) for _, labels, _ in images)
        loss = torch.zeros(())
        for anchors, labels, offsets in images:
            features, positive = torch.relu(body(anchors)), labels > 0
            loss = loss + F.cross_entropy(classes(features), labels, reduction="sum")
            shown = boxes(features)[positive]
            loss = loss + F.smooth_l1_loss(shown, offsets[positive], reduction="sum")
        (loss / matched / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
