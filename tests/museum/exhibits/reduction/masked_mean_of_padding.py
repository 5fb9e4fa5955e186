"""A forecast: predictions and targets are masked, and the mean counts the padding."""

import torch
import torch.nn.functional as F
from torch import nn

from museum.parts import mlp

torch.manual_seed(8)
model = mlp(6, 16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
teacher = nn.Linear(6, 1).requires_grad_(False)


def padded() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, targets and the mask of a batch of series of different lengths."""
    lengths = torch.randint(2, 20, (4,))
    longest = int(lengths.max())
    inputs = torch.randn(4, longest, 6)
    mask = (torch.arange(longest)[None] < lengths[:, None]).float()
    return inputs, teacher(inputs).squeeze(-1), mask


steps = [[padded() for _ in range(4)] for _ in range(6)]
windows = [[(x[k > 0], y[k > 0][:, None]) for x, y, k in step] for step in steps]

for step in steps:
    optimizer.zero_grad()
    for inputs, target, mask in step:
        predicted = model(inputs).squeeze(-1)
        loss = F.mse_loss(predicted * mask, target * mask)
        (loss / len(step)).backward()
    optimizer.step()
