"""The loss is divided by K where it is computed, and in another statement."""

import torch
import torch.nn.functional as F

from museum.parts import EVEN, TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4, lengths=EVEN)
K = 4

for window in windows:
    for ids, targets in window:
        logits, labels = model(ids).flatten(0, 1), targets.flatten()
        loss = F.cross_entropy(logits, labels) / K
        loss = loss / K
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
