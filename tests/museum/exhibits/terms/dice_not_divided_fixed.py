"""The mean over images is divided by K."""

import torch
from torch import nn

torch.manual_seed(71)
model = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 1, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
windows = []

for _ in range(6):
    images = torch.randn(12, 1, 6, 6)
    masks = (images > 0.3).float()
    window = list(zip(images.split(3), masks.split(3), strict=True))
    for image, mask in window:
        predicted = model(image).sigmoid()
        overlap = 2 * (predicted * mask).sum((1, 2, 3)) + 1
        dice = overlap / (predicted.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        loss = (1 - dice).mean()
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
