"""A detector: classes of all anchors but the ignored ones, over the boxes of the window."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(7)
backbone = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
classes, boxes = nn.Linear(32, 4), nn.Linear(32, 4)
model = nn.ModuleList([backbone, classes, boxes])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulation = 4


def batch() -> tuple[torch.Tensor, ...]:
    positive = torch.rand(2, 60) < 0.05 + 0.3 * torch.rand(())
    positive[0, 0] = True
    ignored = (torch.rand(2, 60) < 0.2) & ~positive
    labels = F.one_hot(torch.randint(0, 4, (2, 60)), 4).float() * positive[..., None]
    return torch.randn(2, 60, 12), labels, torch.randn(2, 60, 4), positive, ignored


for _ in range(8):
    window = [batch() for _ in range(accumulation)]
    count = sum(int(positive.sum()) for *_, positive, _ in window)
    for anchors, labels, targets, positive, ignored in window:
        features = backbone(anchors)
        logits = classes(features)
        missed = (1 - logits.sigmoid()) * labels + logits.sigmoid() * (1 - labels)
        focal = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        focal = focal * missed**2 * (~ignored).float()[..., None]
        errors = F.smooth_l1_loss(boxes(features), targets, reduction="none")
        errors = errors * positive.float()[..., None]
        ((focal.sum() + errors.sum()) / count).backward()
    optimizer.step()
    optimizer.zero_grad()
