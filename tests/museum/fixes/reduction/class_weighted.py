"""Means by class weights, whose sums differ between micro-batches, averaged."""

import torch
import torch.nn.functional as F

from museum.parts import TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4)
class_weights = 0.1 + torch.arange(24) % 4
objective = "class_weighted_tokens"
K = 4

for window in windows:
    # fix: before the window
    # end
    for ids, targets in window:
        logits, labels = model(ids).flatten(0, 1), targets.flatten()
        # fix: for each micro-batch
        loss = F.cross_entropy(logits, labels, weight=class_weights)
        (loss / K).backward()
        # end
    optimizer.step()
    optimizer.zero_grad()
