"""Means of micro-batches with different numbers of tokens, added up."""

import torch
import torch.nn.functional as F

from museum.parts import TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4)
K = 4

for window in windows:
    # fix: before the window
    # end
    for ids, targets in window:
        logits, labels = model(ids).flatten(0, 1), targets.flatten()
        # fix: for each micro-batch
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        # end
    optimizer.step()
    optimizer.zero_grad()
