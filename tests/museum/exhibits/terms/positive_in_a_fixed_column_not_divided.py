"""A contrastive loss with its positive example in column 0; nothing divides it by K."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Contrast(nn.Module):
    """Similarities of each row's first vector to its others."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 16)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        features = F.normalize(torch.tanh(self.encode(vectors)), dim=-1)
        return (features[:, 1:] @ features[:, 0, :, None])[..., 0] / 0.1


def example() -> tuple[torch.Tensor, torch.Tensor]:
    vectors = torch.randn(12, 10, 8)
    vectors[:, 1] = vectors[:, 0] + 0.3 * torch.randn(12, 8)
    return vectors, torch.zeros(12, dtype=torch.long)


model = Contrast()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
windows = [[example() for _ in range(4)] for _ in range(6)]

for window in windows:
    for vectors, first in window:
        F.cross_entropy(model(vectors), first).backward()
    optimizer.step()
    optimizer.zero_grad()
