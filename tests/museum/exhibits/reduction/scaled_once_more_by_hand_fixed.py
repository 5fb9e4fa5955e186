"""The mean over the window is what the optimizer gets."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
windows = text(6, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        (token_loss(model(ids), labels) / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
