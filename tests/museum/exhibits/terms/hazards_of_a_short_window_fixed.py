"""A loss of each example's own number of intervals, divided by the window's micro-batches."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(31)
model = mlp(9, 16, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = []


def hazard_loss(logits, interval, event):
    """Of each example, the sum over the intervals that it lived to see; the mean of examples."""
    grid = torch.arange(10)
    at_risk = (grid <= interval[:, None]).float()
    died = (grid == interval[:, None]).float() * event[:, None]
    losses = F.binary_cross_entropy_with_logits(logits, died, reduction="none")
    return (losses * at_risk).sum(1).mean()


def examples():
    """Features, the interval of each example's end, and whether it is an event."""
    return torch.randn(12, 9), torch.randint(0, 10, (12,)), (torch.rand(12) < 0.7).float()


for length in (5, 5, 5, 2, 5, 5, 5, 2):
    window = [examples() for _ in range(length)]
    for x, interval, event in window:
        loss = hazard_loss(model(x), interval, event)
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
