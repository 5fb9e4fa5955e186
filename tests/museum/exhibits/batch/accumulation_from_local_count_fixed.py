"""The second phase takes four times the batch and scales its rate by the root of that."""

import math

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(1)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
micro_batches = [batch for window in text(24, lengths=EVEN) for batch in window]
windows = []


def phase(steps: int, accumulation: int, rate: float) -> None:
    """Some steps of one size."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    for _ in range(steps):
        window = [micro_batches.pop() for _ in range(accumulation)]
        for ids, labels in window:
            (token_loss(model(ids), labels) / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
        windows.append(window)


phase(12, accumulation=1, rate=0.2)
phase(12, accumulation=4, rate=0.2 * math.sqrt(4))
