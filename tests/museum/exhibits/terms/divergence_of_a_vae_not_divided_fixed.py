"""Both terms are divided by the rows of the window."""

import torch
import torch.nn.functional as F
from torch import nn

from museum.parts import mlp


class Autoencoder(nn.Module):
    """A variational one with three latent numbers."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = mlp(12, 16, 6), mlp(3, 16, 12)

    def forward(self, x, noise):
        """The logits of the rows, and the distribution of their codes."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


torch.manual_seed(76)
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
windows = []


def divergence(mean, log_variance):
    """From the standard normal distribution, of each row."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)


for _ in range(6):
    window = [(torch.rand(8, 12), torch.randn(8, 3)) for _ in range(4)]
    rows = sum(len(x) for x, _ in window)
    for x, noise in window:
        logits, mean, log_variance = model(x, noise)
        rebuilt = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / rows
        loss = rebuilt + divergence(mean, log_variance).sum() / rows
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
