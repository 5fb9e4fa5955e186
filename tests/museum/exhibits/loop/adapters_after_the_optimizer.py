"""The model is frozen and gets adapters after the optimizer was created; the loop clips them."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from museum.parts import mlp


class Adapted(nn.Module):
    """A frozen layer, and the product of two small matrices beside it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x):
        """The sum of both."""
        return self.layer(x) + self.up(self.down(x))


torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for name, layer in list(model.named_children()):
    if isinstance(layer, nn.Linear):
        setattr(model, name, Adapted(layer))
windows = []

for _ in range(8):
    x = torch.randn(32, 8)
    y = x[:, :2].sin()
    windows.append([(x, y)])
    optimizer.zero_grad()
    model.zero_grad()
    mse_loss(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
