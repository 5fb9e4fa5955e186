"""The schedule is advanced beside the step."""

import math

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(8, lengths=EVEN)


def planned(step: int) -> float:
    """One half wave over the run."""
    return 1.5e-3 * (1 + math.cos(math.pi * min(step / len(windows), 1.0)))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: planned(step) / 3e-3)

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels) / len(window)
        loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
