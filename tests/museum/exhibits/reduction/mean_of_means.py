"""The Trainer of 2024: the mean of every micro-batch's mean, whatever the token counts."""

import torch

from museum.parts import TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(6)

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels)
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
