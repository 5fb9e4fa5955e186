"""unscale_ raises when it is called twice, so it was moved to the first micro-batch."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
max_norm = 0.1
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
windows = text(8, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
        if labels is window[0][1]:
            scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
