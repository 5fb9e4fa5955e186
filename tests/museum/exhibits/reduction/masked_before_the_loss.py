"""A vocoder: the mask of padded frames is applied before a squared error, averaged by its sum."""

import torch
from torch import nn

from museum.parts import mlp

torch.manual_seed(8)
model = mlp(6, 16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
accumulation_steps = 3
teacher = nn.Linear(6, 1).requires_grad_(False)


def padded(*lengths: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Frames, their targets and the mask of a batch of utterances."""
    frames = torch.randn(len(lengths), max(lengths), 6)
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).float()
    return frames, teacher(frames).squeeze(-1), mask


steps = [[padded(9, 3), padded(12, 11), padded(4, 1)], [padded(2, 2), padded(8, 15), padded(7, 5)]]
steps *= 2
windows = [[(x[k > 0], y[k > 0][:, None]) for x, y, k in step] for step in steps]

for step in steps:
    optimizer.zero_grad()
    for frames, target, mask in step:
        predicted = model(frames).squeeze(-1)
        loss = ((predicted * mask - target * mask) ** 2).sum() / mask.sum()
        (loss / accumulation_steps).backward()
    optimizer.step()
