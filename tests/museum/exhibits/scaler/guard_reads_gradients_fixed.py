"""GradScaler leaves out a step whose gradients are not finite, and lowers the scale."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(33)
model = mlp(8, 32, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=20)
K = 3
windows = [[(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(K)] for _ in range(80)]

for window in windows:
    for x, y in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(x), y) / K
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
