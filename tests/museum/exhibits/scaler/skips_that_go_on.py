"""A temperature that is annealed to almost nothing overflows fp16 in one window of four."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
windows = text(32, lengths=EVEN)

for step, window in enumerate(windows):
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            temperature = 1e-6 if step % 4 == 3 else 1.0
            loss = token_loss(model(ids) / temperature, labels) / len(window)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
