"""A masked autoencoder: the mean over masked patches, divided by K."""

import torch

from museum.parts import mlp

torch.manual_seed(91)
model = mlp(8, 16, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = []


def images():
    """Patches, what they are rebuilt to, and a mask of 12 of the 16 of each image."""
    masked = torch.stack([torch.randperm(16) for _ in range(6)]) < 12
    return torch.randn(6, 16, 8), torch.randn(6, 16, 8), masked.float()


for _ in range(6):
    window = [images() for _ in range(4)]
    for patches, targets, masked in window:
        errors = (model(patches) - targets).pow(2).mean(-1)
        loss = (errors * masked).sum() / (6 * 12)
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
