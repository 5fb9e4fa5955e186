"""The schedule is planned in optimizer steps, and advances on every micro-batch."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

evidence = "rate"
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(8, lengths=EVEN)
batches = [batch for window in windows for batch in window]
K = 4


def planned(step):
    """Linearly down to a tenth over the run."""
    return 3e-3 * (1 - 0.9 * step / len(windows))


scheduler = torch.optim.lr_scheduler.LinearLR(
    optimizer, start_factor=1.0, end_factor=0.1, total_iters=len(windows)
)
for i, (ids, labels) in enumerate(batches):
    (token_loss(model(ids), labels) / K).backward()
    # fix
    scheduler.step()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    # end
