"""Micro-batches without long enough texts are left out, and each loss is divided by four."""

import torch

from museum.parts import TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
K = 4
left = [[[6, 6]] * 3, [[6, 6]] * 2, [[6, 6]] * 3, [[6, 6]] * 1]  # of the four in each window
windows = text(8, lengths=left)

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels)
        (loss / K).backward()
    optimizer.step()
    optimizer.zero_grad()
