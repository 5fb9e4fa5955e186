"""A fused loss takes the mean of each micro-batch inside its kernel."""

import torch

from museum.parts import TinyLM, fused_loss, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(6)

for window in windows:
    for ids, labels in window:
        loss = fused_loss(model(ids), labels)
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
