"""The optimizer steps after each micro-batch, whose loss is divided by K."""

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
loader = [batch for window in windows for batch in window]

for i, (ids, labels) in enumerate(loader):  # noqa: B007 - used by the fix
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()) / K
    # fix
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    # end
model = plain
