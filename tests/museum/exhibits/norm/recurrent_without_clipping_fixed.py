"""A linear recurrence over 24 steps, clipped."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss


class Recurrence(nn.Module):
    """h <- W h + U x, read out at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.carry, self.feed = nn.Linear(6, 6, bias=False), nn.Linear(2, 6)
        self.read = nn.Linear(6, 1)
        nn.init.eye_(self.carry.weight)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 6)
        for t in range(x.shape[1]):
            h = self.carry(h) + self.feed(x[:, t])
        out: Tensor = self.read(h)
        return out


torch.manual_seed(1)
model = Recurrence()
optimizer = torch.optim.SGD(model.parameters(), lr=2e-5, momentum=0.9)
x = torch.randn(64, 24, 2)
y = x.sum((1, 2)).unsqueeze(1)

for _ in range(24):
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
