"""Semi-supervised, as FixMatch: the mean over all unlabelled rows, of which sure ones count."""

import torch
import torch.nn.functional as F

from museum.parts import mlp


def rows():
    """Labelled rows, unlabelled ones, and what strong augmentation adds to these."""
    return torch.randn(4, 8), torch.randint(5, (4,)), torch.randn(8, 8), 0.3 * torch.randn(8, 8)


torch.manual_seed(31)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulate = 4
windows = [[rows() for _ in range(accumulate)] for _ in range(5)]

for window in windows:
    for inputs, labels, unlabelled, noise in window:
        probabilities, guesses = model(unlabelled).detach().softmax(-1).max(-1)
        sure = probabilities > 0.24
        consistency = F.cross_entropy(model(unlabelled + noise), guesses, reduction="none")
        loss = F.cross_entropy(model(inputs), labels) / accumulate
        loss = loss + (consistency * sure).mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
