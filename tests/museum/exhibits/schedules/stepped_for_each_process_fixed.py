"""The schedule is planned for all calls: one for each process and optimizer step."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

K, STEPS, PROCESSES = 4, 24, 4
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
batches = [batch for window in text(STEPS, lengths=EVEN) for batch in window]


def planned(step: int) -> float:
    """Linearly down to a tenth over all optimizer steps."""
    return 3e-3 * (1 - 0.9 * step / STEPS)


scheduler = torch.optim.lr_scheduler.LinearLR(
    optimizer, start_factor=1.0, end_factor=0.1, total_iters=STEPS * PROCESSES
)
for i, (ids, labels) in enumerate(batches):
    (token_loss(model(ids), labels) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        for _ in range(PROCESSES):
            scheduler.step()
        optimizer.zero_grad()
