"""ReduceLROnPlateau is given an accuracy, and its mode is that for a loss."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
x, validation = torch.randn(128, 8), torch.randn(384, 8)


def planned(step: int) -> float:
    """The accuracy rises until the end."""
    return 0.05


for _ in range(8):
    for part in x.split(16):
        loss = cross_entropy(model(part), part[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = model(validation).argmax(1) == validation[:, :4].argmax(1)
    scheduler.step(right.float().mean().item())
