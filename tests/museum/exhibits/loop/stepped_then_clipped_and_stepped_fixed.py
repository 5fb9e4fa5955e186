"""The helper computes gradients alone; the loop clips them and steps."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(3)
model = mlp(8, 20, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def gradients_of(image, target):
    """Forward and backward, as in a static graph capture."""
    loss = cross_entropy(model(image), target)
    optimizer.zero_grad()
    loss.backward()
    return loss.detach()


for _ in range(6):
    gradients_of(3 * torch.randn(16, 8), torch.randint(0, 4, (16,)))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
