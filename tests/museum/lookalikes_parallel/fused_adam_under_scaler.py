"""Fused AdamW: its kernel divides by the scale, so gradients are scaled at the step."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
windows = text(16, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
