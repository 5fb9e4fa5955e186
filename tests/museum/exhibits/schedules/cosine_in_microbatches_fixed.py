"""The schedule is advanced beside the step."""

import math

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(8, lengths=EVEN)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(windows))

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels) / len(window)
        loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


def planned(step: int) -> float:
    """One half wave over the run."""
    return 1.5e-3 * (1 + math.cos(math.pi * step / len(windows)))
