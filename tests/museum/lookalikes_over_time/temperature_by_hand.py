"""The loop changes one parameter of the model itself: the temperature, by its own rule."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp


class Tempered(nn.Module):
    """Logits divided by a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(8, 32, 3)
        self.heat = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.body(x) * torch.exp(-self.heat)
        return logits


torch.manual_seed(0)
model = Tempered()
optimizer = torch.optim.Adam(model.body.parameters(), lr=1e-3)

for _ in range(40):
    x = torch.randn(32, 8)
    model.zero_grad()
    cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    optimizer.step()
    assert model.heat.grad is not None
    with torch.no_grad():
        model.heat.sub_(0.01 * model.heat.grad.sign())
