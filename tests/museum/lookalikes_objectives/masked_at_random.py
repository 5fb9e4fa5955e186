"""A denoising autoencoder: a mask that is drawn for each entry, and a mean over all entries."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from museum.parts import mlp

torch.manual_seed(41)
model = mlp(16, 24, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

for _ in range(16):
    x = (torch.rand(32, 16) < 0.3).float()
    mask = (torch.rand(32, 16) < 0.5).float()
    errors = binary_cross_entropy_with_logits(model(x * (1 - mask)), x, reduction="none")
    (errors * mask).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
