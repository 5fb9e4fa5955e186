"""Triplets of one embedding, by the indices of their anchors, positives and negatives."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(5)
model = mlp(8, 32, 16)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
accumulation = 4


def triplets(labels: torch.Tensor) -> torch.Tensor:
    """As many as the classes of the micro-batch have, at most 40."""
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(labels), dtype=torch.bool)
    every = (positive[:, :, None] & ~same[:, None, :]).nonzero()
    return every[torch.randperm(len(every))[: int(torch.randint(10, 40, ()))]]


for _ in range(8):
    for _ in range(accumulation):
        labels = torch.randint(0, 3, (12,))
        embeddings = F.normalize(model(torch.randn(12, 8)), dim=-1)
        anchor, positive, negative = triplets(labels).T
        loss = F.triplet_margin_loss(
            embeddings[anchor], embeddings[positive], embeddings[negative], margin=0.2
        )
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
