"""backward() stands after the inner loop: only the loss of the last micro-batch is trained on."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

GRADIENT_ACCUMULATE_EVERY = 4

torch.manual_seed(5)
model = TinyLM()
optim = torch.optim.Adam(model.parameters(), lr=1e-3)
windows = text(4, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels)
    (loss / GRADIENT_ACCUMULATE_EVERY).backward()
    optim.step()
    optim.zero_grad()
