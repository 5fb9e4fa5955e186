"""zero_grad before the first backward of a window, the last of which has a line of its own."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
windows = text(5, lengths=EVEN)

for window in windows:
    optimizer.zero_grad()
    for ids, labels in window[:-1]:
        loss = token_loss(model(ids), labels) / len(window)
        loss.backward()
    ids, labels = window[-1]
    loss = token_loss(model(ids), labels) / len(window)
    loss.backward()
    optimizer.step()
