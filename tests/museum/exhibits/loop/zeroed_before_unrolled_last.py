"""zero_grad before every backward, the last of which has a line of its own beside the step."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
windows = text(5, lengths=EVEN)

for window in windows:
    for ids, labels in window[:-1]:
        optimizer.zero_grad()
        loss = token_loss(model(ids), labels) / len(window)
        loss.backward()
    ids, labels = window[-1]
    optimizer.zero_grad()
    loss = token_loss(model(ids), labels) / len(window)
    loss.backward()
    optimizer.step()
