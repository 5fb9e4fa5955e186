"""The forward pass calls every block of a list."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss


class Residual(nn.Module):
    """Blocks, each of which adds to its input."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the head."""
        for index in range(len(self.blocks)):
            x = x + torch.relu(self.blocks[index](x))
        out: Tensor = self.head(x)
        return out


torch.manual_seed(0)
model = Residual(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for _ in range(40):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    mse_loss(model(x), x[:, :2].sin()).backward()
    optimizer.step()
