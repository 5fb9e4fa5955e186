"""Backward on each loss by itself; the total of detached losses is for the log."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
windows = text(5, lengths=EVEN)

for window in windows:
    total = 0.0
    for ids, labels in window:
        loss = token_loss(model(ids), labels) / len(window)
        total += loss.detach()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
