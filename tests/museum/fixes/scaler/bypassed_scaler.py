"""Losses are scaled, and the optimizer steps without the scaler."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
windows = text(4, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        scaler.scale(token_loss(model(ids), labels) / len(window)).backward()
    # fix
    optimizer.step()
    # end
    optimizer.zero_grad()
