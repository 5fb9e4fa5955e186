"""kl_div with its default reduction, the mean over rows and classes."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(1)
model = mlp(8, 16, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4

for _ in range(8):
    for _ in range(accumulation):
        x, soft = torch.randn(12, 8), torch.randn(12, 5).softmax(-1)
        loss = F.kl_div(model(x).log_softmax(-1), soft, reduction="mean")
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
