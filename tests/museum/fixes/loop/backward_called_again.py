"""Backward is called twice on each loss."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels) / len(window)
        # fix
        loss.backward(retain_graph=True)
        loss.backward()
        # end
    optimizer.step()
    optimizer.zero_grad()
