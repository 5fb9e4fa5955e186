"""fp16 with a short growth interval: a skip follows each growth beyond the limit."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", growth_interval=25)
windows = text(150, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
