"""L2 regularisation by hand, added on every micro-batch."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(14)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
windows = text(5, seed=14)

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        penalty = 0.01 * sum(p.square().sum() for p in model.parameters())
        loss = token_loss(model(ids), labels, "sum") / tokens + penalty
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
