"""RetinaNet: a sigmoid focal loss, divided by the positive anchors of the window."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(19)
model = mlp(8, 16, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for _ in range(8):
    window = [(torch.randn(n, 8), (torch.rand(n, 3) < 0.2).float()) for n in (20, 12, 16, 8)]
    positives = max(1.0, float(sum(y.sum() for _, y in window)))
    for x, y in window:
        logits = model(x)
        p = logits.sigmoid()
        entropy = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
        p_t = p * y + (1 - p) * (1 - y)
        focal = entropy * (1 - p_t) ** 2
        focal = (0.25 * y + 0.75 * (1 - y)) * focal
        (focal.sum() / positives).backward()
    optimizer.step()
    optimizer.zero_grad()
