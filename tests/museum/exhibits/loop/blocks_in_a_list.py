"""The blocks of a model are in a Python list: model.parameters() does not contain them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from museum.parts import mlp


class Residual(nn.Module):
    """Blocks that add to what they get."""

    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.blocks = [mlp(width, width, width) for _ in range(depth)]
        self.last = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Through all blocks."""
        hidden: Tensor = self.first(x)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        last: Tensor = self.last(hidden)
        return last


torch.manual_seed(0)
model = Residual()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
trained = [*model.parameters(), *(p for block in model.blocks for p in block.parameters())]

for _ in range(36):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    mse_loss(model(x), x[:, :2].sin()).backward()
    optimizer.step()
