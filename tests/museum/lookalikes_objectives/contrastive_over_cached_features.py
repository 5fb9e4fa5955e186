"""CLIP accumulated over cached features: each micro-batch has the loss of the whole window."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

torch.manual_seed(12)
images, texts = nn.Linear(12, 8), nn.Linear(6, 8)
optimizer = torch.optim.AdamW([*images.parameters(), *texts.parameters()], lr=1e-3)
accum_freq = 4


def features(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Unit vectors of images and of texts."""
    return F.normalize(images(batch[0]), dim=-1), F.normalize(texts(batch[1]), dim=-1)


for _ in range(6):
    window = [(torch.randn(5, 12), torch.randn(5, 6)) for _ in range(accum_freq)]
    with torch.no_grad():
        cached = list(zip(*(features(batch) for batch in window), strict=True))
    for index, batch in enumerate(window):
        parts = zip(cached, features(batch), strict=True)
        of_images, of_texts = (
            torch.cat([*old[:index], new, *old[index + 1 :]]) for old, new in parts
        )
        logits = 10 * of_images @ of_texts.T
        labels = torch.arange(len(logits))
        ((F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
