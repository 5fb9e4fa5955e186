"""Small normal weights, as for a transformer, in a stack without residual connections."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Stack(nn.Module):
    """Layers that follow each other."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 4)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        out: Tensor = self.head(x)
        return out


torch.manual_seed(0)
model = Stack(32, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for _ in range(20):
    x = torch.randn(32, 32)
    optimizer.zero_grad()
    cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
