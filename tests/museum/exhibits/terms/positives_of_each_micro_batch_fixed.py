"""SSD: the anchors of the window that match an object divide both losses, per image summed."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(81)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 24)
        self.classes, self.boxes = nn.Linear(24, 5), nn.Linear(24, 4)

    def forward(self, anchors):
        features = torch.relu(self.body(anchors))
        return self.classes(features), self.boxes(features)


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
windows = []


def image():
    """Anchors, their classes (0 is background), and their offsets."""
    labels, count = torch.zeros(40, dtype=torch.long), int(torch.randint(1, 12, ()))
    labels[torch.randperm(40)[:count]] = torch.randint(1, 5, (count,))
    return torch.randn(40, 12), labels, torch.randn(40, 4)


for _ in range(8):
    window = [[image(), image()] for _ in range(4)]
    matched = sum(int((labels > 0).sum()) for images in window for _, labels, _ in images)
    for images in window:
        loss = torch.zeros(())
        for anchors, labels, offsets in images:
            (classes, boxes), positive = model(anchors), labels > 0
            loss = loss + F.cross_entropy(classes, labels, reduction="sum")
            loss = loss + F.smooth_l1_loss(boxes[positive], offsets[positive], reduction="sum")
        (loss / matched).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
