"""A helper that limits the norm by itself, called beside backward: it limits partial sums."""

from collections.abc import Iterable

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(8)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(5, lengths=EVEN)
max_norm = 0.1


def limit_norm(parameters: Iterable[torch.nn.Parameter], limit: float) -> None:
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.sqrt(sum(g.square().sum() for g in grads))
    if norm > limit:
        for grad in grads:
            grad.mul_(limit / norm)


for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels) / len(window)
        loss.backward()
        limit_norm(model.parameters(), max_norm)
    optimizer.step()
    model.zero_grad()
