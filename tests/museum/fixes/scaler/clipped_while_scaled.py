"""Gradients are clipped before they are unscaled."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
windows = text(4, lengths=EVEN)
max_norm = 100.0

for window in windows:
    for ids, labels in window:
        scaler.scale(token_loss(model(ids), labels) / len(window)).backward()
    # fix
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    # end
    optimizer.zero_grad()
