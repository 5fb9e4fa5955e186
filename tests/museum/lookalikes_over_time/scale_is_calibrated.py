"""The loss scale starts far too large: the first steps are skipped, and scaled losses overflow."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 32, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)

for _ in range(140):
    x = torch.randn(32, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
    loss = mse_loss(output.float(), 8 * x[:, :2])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
