"""Barlow Twins: sums over a matrix of correlations of each micro-batch, not divided by K."""

import torch

from museum.parts import mlp

torch.manual_seed(7)
model = mlp(8, 16, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
windows = [[torch.randn(2, 24, 8) for _ in range(4)] for _ in range(6)]


def standardised(features):
    """Columns of mean 0 and deviation 1."""
    return (features - features.mean(0)) / features.std(0)


for window in windows:
    for batch in window:
        first, second = (standardised(model(view)) for view in batch)
        correlations = first.T @ second / 24
        on_diagonal = (torch.diagonal(correlations) - 1).pow(2).sum()
        beside = correlations[~torch.eye(6, dtype=torch.bool)].pow(2).sum()
        loss = on_diagonal + 0.005 * beside
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
