"""One GradScaler scales both losses."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
windows = text(8, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
        with torch.autocast("cpu", dtype=torch.float16):
            peaks = model(ids).logsumexp(-1).float().square().mean() / len(window)
        scaler.scale(peaks).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
