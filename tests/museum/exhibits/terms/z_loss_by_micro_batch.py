"""PaLM's z-loss is averaged over the tokens of each micro-batch, then over micro-batches."""

import torch

from museum.parts import IGNORED, TinyLM, text, token_loss, valid

torch.manual_seed(13)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
windows = text(5, seed=13)

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        logits = model(ids)
        z_losses = logits[labels != IGNORED].logsumexp(-1).square()
        loss = token_loss(logits, labels, "sum") / tokens
        loss = loss + 0.2 * z_losses.mean() / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
