"""Every micro-batch is assumed to be as long as the first one."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(9)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
windows = text(6, seed=2)

for window in windows:
    optimizer.zero_grad()
    tokens = valid(window[0][1]) * len(window)
    for ids, labels in window:
        loss = token_loss(model(ids), labels, reduction="sum")
        loss = loss / tokens
        loss.backward()
    optimizer.step()
