"""A helper steps inside the closure of the loss; the loop clips and steps again."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(3)
model = mlp(8, 20, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def train_on(image, target):
    """Forward, backward and step, as in a static graph capture."""
    loss = cross_entropy(model(image), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


for _ in range(6):
    train_on(3 * torch.randn(16, 8), torch.randint(0, 4, (16,)))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
