"""Seven micro-batches an epoch, three to a step, each window by its own tokens."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(23)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
batches = [batch for window in text(2) for batch in window][:7]

for _ in range(4):
    for start in range(0, len(batches), 3):
        window = batches[start : start + 3]
        tokens = sum(valid(labels) for _, labels in window)
        for ids, labels in window:
            (token_loss(model(ids), labels, reduction="sum") / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
