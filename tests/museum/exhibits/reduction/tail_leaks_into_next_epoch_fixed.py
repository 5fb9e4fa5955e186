"""Six images, K = 4: the last two get a step of their own."""

import torch
import torch.nn.functional as F

from museum.parts import mlp, points

torch.manual_seed(19)
unet = mlp(8, 24, 8)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
images = [x for x, _ in points([4] * 6)]
accumulation, windows = 4, []

for _ in range(4):
    for index, image in enumerate(images):
        noise = torch.randn_like(image)
        left = len(images) - index // accumulation * accumulation
        loss = F.mse_loss(unet(image + noise), noise) / min(accumulation, left)
        loss.backward()
        if (index + 1) % accumulation == 0 or index + 1 == len(images):
            optimizer.step()
            optimizer.zero_grad()
    windows += [images[:4], images[4:]]
