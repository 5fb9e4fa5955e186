"""Autocast to bfloat16 and float16 on the CPU, with a GradScaler that finds infinities."""

import torch
from torch import nn

torch.manual_seed(0)
for dtype in (torch.bfloat16, torch.float16):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)
    for step in range(16):
        optimizer.zero_grad()
        for _ in range(2):
            with torch.autocast("cpu", dtype=dtype):
                loss = model(torch.randn(4, 8)).square().mean() / 2
            if step % 5 == 4:
                loss = loss * 1e38 * 1e38
            scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(scaler.get_scale())
    print([parameter.tolist() for parameter in model.parameters()], scaler.state_dict())
