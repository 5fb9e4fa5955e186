"""Means that nothing divides, in windows of different lengths."""

import torch
import torch.nn.functional as F

from museum.parts import EVEN, TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(8, lengths=(*EVEN, *EVEN, EVEN[0][:2], *EVEN))

for window in windows:
    for ids, targets in window:
        logits, labels = model(ids).flatten(0, 1), targets.flatten()
        loss = F.cross_entropy(logits, labels)
        # fix: for each micro-batch
        loss.backward()
        # end
    optimizer.step()
    optimizer.zero_grad()
