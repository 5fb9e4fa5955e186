"""The gradients are clipped after each micro-batch."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import EVEN, TinyLM, text

K = 4
fabric = start()
windows = text(4, lengths=EVEN)
torch.manual_seed(0)
plain = TinyLM()
model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=3e-3))
max_norm = 0.2
loader = [batch for window in windows for batch in window]

for i, (ids, labels) in enumerate(loader):
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()) / K
    fabric.backward(loss)
    # fix
    fabric.clip_gradients(model, optimizer, max_norm=max_norm)
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    # end
model = plain
