"""Mixed precision was added to a loop that unscales and steps by hand; the scaler steps, too."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(4)
model = mlp(8, 20, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

for _ in range(6):
    image, target = torch.randn(16, 8), torch.randint(0, 4, (16,))
    optimizer.zero_grad()
    scaler.scale(cross_entropy(model(image), target)).backward()
    scaler.unscale_(optimizer)
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
