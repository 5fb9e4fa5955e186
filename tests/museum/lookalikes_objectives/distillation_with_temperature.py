"""Distillation at a temperature of 2: a divergence times four, and a cross entropy."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(2)
model = mlp(8, 16, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4
teacher = mlp(8, 16, 5)

for _ in range(8):
    for _ in range(accumulation):
        x, y = torch.randn(12, 8), torch.randint(0, 5, (12,))
        with torch.no_grad():
            soft = (teacher(x) / 2).softmax(-1)
        logits = model(x)
        divergence = F.kl_div((logits / 2).log_softmax(-1), soft, reduction="batchmean") * 4
        loss = 0.7 * divergence + 0.3 * F.cross_entropy(logits, y)
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
