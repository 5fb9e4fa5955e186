"""The losses of all sequences of a window are divided by their tokens."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import TinyLM, text, valid

torch.manual_seed(31)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = text(8)

for window in windows:
    total = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        per_token = cross_entropy(model(ids).transpose(1, 2), labels, reduction="none")
        loss = per_token.sum(1).sum() / total
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
