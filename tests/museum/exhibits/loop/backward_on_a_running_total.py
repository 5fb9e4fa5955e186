"""Backward on a running total of the losses: the first micro-batch counts four times."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
windows = text(5, lengths=EVEN)

for window in windows:
    total = 0.0
    for ids, labels in window:
        total = total + token_loss(model(ids), labels) / len(window)
        total.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
