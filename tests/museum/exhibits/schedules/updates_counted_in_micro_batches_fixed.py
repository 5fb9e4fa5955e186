"""The number of the optimizer step is what the scheduler gets."""

import math

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

K, STEPS, HIGHEST, LOWEST = 4, 24, 3e-3, 3e-4
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=HIGHEST)
batches = [batch for window in text(STEPS, lengths=EVEN) for batch in window]


def planned(step: int) -> float:
    """Half a cosine over all optimizer steps, and its end from then on."""
    share = min(step / STEPS, 1.0)
    return LOWEST + (HIGHEST - LOWEST) * (1 + math.cos(math.pi * share)) / 2


class Cosine:
    """Sets the rate of an update, as the schedulers of image models do."""

    def step_update(self, num_updates: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = planned(num_updates)


scheduler = Cosine()
for i, (ids, labels) in enumerate(batches):
    (token_loss(model(ids), labels) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step_update((i + 1) // K)
