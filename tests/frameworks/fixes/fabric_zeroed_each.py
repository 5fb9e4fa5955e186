"""Gradients are zeroed before each backward of a window."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import EVEN, TinyLM, text

K = 4
fabric = start()
windows = text(4, lengths=EVEN)
torch.manual_seed(0)
model = TinyLM()
plain = model
model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=3e-3))
loader = [batch for window in windows for batch in window]


def loss_fn(logits, labels):
    """The mean of a micro-batch."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


# fix
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    fabric.backward(loss_fn(model(x), y) / K)
    if (i + 1) % K == 0:
        optimizer.step()
# end
model = plain
