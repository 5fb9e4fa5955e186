"""Boxes, classes and a mask, each with its coefficient."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from museum.parts import mlp


class Detector(nn.Module):
    """One body, three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(8, 16, 16)
        self.box, self.kind, self.mask = nn.Linear(16, 4), nn.Linear(16, 5), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.relu(self.body(x))
        return self.box(h), self.kind(h), self.mask(h)


torch.manual_seed(13)
model = Detector()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
LAMBDA_BOX, LAMBDA_CLASS, LAMBDA_MASK, K = 0.05, 0.5, 1.5, 2

for _ in range(6):
    for _ in range(K):
        x = torch.randn(12, 8)
        box, kind, mask = model(x)
        loss = LAMBDA_BOX * F.smooth_l1_loss(box, x[:, :4])
        loss = loss + LAMBDA_CLASS * F.cross_entropy(kind, torch.randint(0, 5, (12,)))
        loss = loss + LAMBDA_MASK * F.binary_cross_entropy_with_logits(mask, (x[:, :1] > 0).float())
        (loss / K).backward()
    optimizer.step()
    optimizer.zero_grad()
