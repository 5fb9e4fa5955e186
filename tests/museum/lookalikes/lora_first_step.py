"""LoRA: a frozen weight beside a product whose right factor starts at zero."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LoRA(nn.Module):
    """y = W x + B A x, W frozen."""

    def __init__(self, linear: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, linear.in_features) * 0.1)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + x @ self.A.T @ self.B.T
        return out


torch.manual_seed(17)
model = nn.Sequential(LoRA(nn.Linear(8, 16)), nn.ReLU(), LoRA(nn.Linear(16, 4)))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

for _ in range(6):
    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
