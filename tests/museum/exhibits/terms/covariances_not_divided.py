"""VICReg: the covariances of each micro-batch, not divided by K."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(8)
model = mlp(8, 16, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
windows = [[torch.randn(2, 24, 8) for _ in range(4)] for _ in range(6)]


def beside_diagonal(features):
    """Squared covariances of different features, by feature."""
    covariances = torch.cov(features.T)
    return covariances[~torch.eye(6, dtype=torch.bool)].pow(2).sum() / 6


for window in windows:
    for batch in window:
        first, second = (model(view) for view in batch)
        means = [view - view.mean(0) for view in (first, second)]
        across = torch.einsum("ni,nj->ij", *means) / 23
        loss = 25 * F.mse_loss(first, second) + beside_diagonal(first) + beside_diagonal(second)
        loss = loss + 0.1 * (torch.diagonal(across) - 1).pow(2).mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
