"""Metric learning: the loss has a center for each class that the optimizer trains."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp


class CenterLoss(nn.Module):
    """The squared distance of each feature from the center of its class."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, width))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The mean over the batch."""
        return (features - self.centers[labels]).square().sum(1).mean()


torch.manual_seed(0)
model, head, center_loss = mlp(8, 32, 16), nn.Linear(16, 3), CenterLoss(3, 16)
optimizer = torch.optim.Adam(
    [*model.parameters(), *head.parameters(), *center_loss.parameters()], lr=1e-3
)
trained = [*model.parameters(), *head.parameters(), *center_loss.parameters()]
windows = []

for _ in range(36):
    x = torch.randn(32, 8)
    labels = x[:, :3].argmax(1)
    windows.append(x)
    features = model(x)
    loss = cross_entropy(head(features), labels) + 0.01 * center_loss(features, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
