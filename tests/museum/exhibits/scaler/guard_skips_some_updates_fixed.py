"""The scaler sees every window; the bad ones it skips, and it moves the scale."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
windows = text(12, lengths=EVEN)

for step, window in enumerate(windows):
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
            loss = loss * (1e6 if step % 4 == 2 else 1)
        scaler.scale(loss).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
