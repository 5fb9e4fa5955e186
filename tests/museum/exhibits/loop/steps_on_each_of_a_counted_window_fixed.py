"""One step for each window."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(6)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = text(5)

for window in windows:
    count = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        (token_loss(model(ids), labels, "sum") / count).backward()
    optimizer.step()
    optimizer.zero_grad()
