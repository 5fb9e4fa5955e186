"""The loss of each sequence is divided by the padded length of its batch."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import TinyLM, text

torch.manual_seed(31)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = text(8)

for window in windows:
    for ids, labels in window:
        per_token = cross_entropy(model(ids).transpose(1, 2), labels, reduction="none")
        loss = (per_token.sum(1) / labels.shape[1]).mean()
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
