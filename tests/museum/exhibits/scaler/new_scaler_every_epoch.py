"""train_epoch() makes its own GradScaler: each epoch begins at 2^24 and overflows again."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(12, lengths=EVEN)

for _ in range(3):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    for window in windows:
        for ids, labels in window:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = token_loss(model(ids), labels) / len(window)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
