"""Cross-validation in fp16: each fold has a new model, optimizer and GradScaler."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
x = torch.randn(200, 8)

for fold in range(4):
    model = mlp(8, 16, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    rows = torch.arange(200) % 4 != fold
    for batch in x[rows].split(25):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            made = model(batch)
        scaler.scale(mse_loss(made.float(), batch[:, :2].sin())).backward()
        scaler.step(optimizer)
        scaler.update()
