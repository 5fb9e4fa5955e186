"""The schedule is planned in optimizer steps, and advances on every micro-batch."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import EVEN, TinyLM, text

evidence = "rate"
K = 4
fabric = start()
windows = text(8, lengths=EVEN)
loader = [batch for window in windows for batch in window]
torch.manual_seed(0)
plain = TinyLM()
model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=3e-3))


def planned(step):
    """Linearly down to a tenth over the run."""
    return 3e-3 * (1 - 0.9 * step / len(windows))


scheduler = torch.optim.lr_scheduler.LinearLR(
    optimizer.optimizer, start_factor=1.0, end_factor=0.1, total_iters=len(windows)
)
for i, (ids, labels) in enumerate(loader):
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    fabric.backward(loss / K)
    # fix
    scheduler.step()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    # end
model = plain
