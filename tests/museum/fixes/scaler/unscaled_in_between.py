"""Gradients are unscaled after the first backward of a window."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
windows = text(4, lengths=EVEN)

for batches in windows:
    window = (token_loss(model(ids), labels) / len(batches) for ids, labels in batches)
    # fix
    scaler.scale(next(window)).backward()
    scaler.unscale_(optimizer)
    for loss in window:
        scaler.scale(loss).backward()
    # end
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
