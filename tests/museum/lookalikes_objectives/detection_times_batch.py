"""YOLO: three losses, each normalised by the targets of the batch, times the batch size."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(5)
model = mlp(8, 24, 9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9, nesterov=True)

for _ in range(10):
    accumulate = 2
    for _ in range(accumulate):
        images, anchors = 4, 12
        outputs = model(torch.randn(images, anchors, 8))
        boxes, classes = outputs[..., :4].sigmoid(), outputs[..., 4:]
        targets = torch.rand(images, anchors, 5) * (torch.rand(images, anchors, 1) < 0.3)
        total = targets.sum().clamp(min=1)
        found = targets.sum(-1) > 0
        weight = targets.sum(-1)[found]
        distance = (boxes[found] - torch.rand(int(found.sum()), 4)).abs().mean(-1)
        box = 7.5 * (distance * weight).sum() / total
        entropy = F.binary_cross_entropy_with_logits(classes, targets, reduction="none")
        loss = (box + 0.5 * entropy.sum() / total) * images
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    optimizer.zero_grad()
