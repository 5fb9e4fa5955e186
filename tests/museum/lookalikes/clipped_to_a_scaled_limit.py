"""The limit of the clip is multiplied by the loss scale, as the gradients are."""

import torch
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from museum.parts import mlp

torch.manual_seed(34)
model = mlp(8, 32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=6)

for _ in range(20):
    for _ in range(2):
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        scaler.scale(mse_loss(out.float(), x.sin().sum(1, keepdim=True)) / 2).backward()
    clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
