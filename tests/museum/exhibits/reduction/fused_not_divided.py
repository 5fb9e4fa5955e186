"""A fused loss, a mean, K times in a window: nobody divides by K."""

import torch

from museum.parts import EVEN, TinyLM, fused_loss, text

torch.manual_seed(1)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(6, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        loss = fused_loss(model(ids), labels)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
