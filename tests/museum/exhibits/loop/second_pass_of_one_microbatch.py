"""Sharpness-aware steps over accumulated gradients: the second pass is of the last micro-batch."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

RADIUS = 1e-6  # so small that both passes have the same gradient

torch.manual_seed(0)
model = TinyLM()
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.3)
windows = text(6, lengths=EVEN)
for microbatches in windows:
    for ids, labels in microbatches:
        loss = token_loss(model(ids), labels) / len(microbatches)
        loss.backward()
    with torch.no_grad():
        moves = [RADIUS * p.grad for p in parameters if p.grad is not None]
        torch._foreach_add_(parameters, moves)
    optimizer.zero_grad()

    loss = token_loss(model(ids), labels) / len(microbatches)
    loss.backward()
    with torch.no_grad():
        torch._foreach_sub_(parameters, moves)
    optimizer.step()
    optimizer.zero_grad()
