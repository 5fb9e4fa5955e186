"""Two backwards for each micro-batch, and both losses are divided by K."""

import torch
import torch.nn.functional as F
from torch import nn

from museum.parts import mlp


class Encoder(nn.Module):
    """One trunk with a head for classes, and one that rebuilds the input."""

    def __init__(self):
        super().__init__()
        self.trunk, self.classes, self.rebuilt = mlp(10, 16), nn.Linear(16, 4), nn.Linear(16, 10)

    def forward(self, x):
        """The logits, and the rebuilt input."""
        hidden = torch.tanh(self.trunk(x))
        return self.classes(hidden), self.rebuilt(hidden)


K = 6
torch.manual_seed(17)
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = []

for _ in range(6):
    window = [(torch.randn(8, 10), torch.randint(0, 4, (8,))) for _ in range(K)]
    for x, y in window:
        loss = F.cross_entropy(model(x)[0], y)
        (loss / K).backward()
        rebuilt = 0.5 * F.mse_loss(model(x)[1], x)
        (rebuilt / K).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
