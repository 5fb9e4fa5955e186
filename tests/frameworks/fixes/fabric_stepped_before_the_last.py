"""The optimizer steps after every micro-batch of an accumulation, which alone ends by zero_grad."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import EVEN, TinyLM, text

K = 4
fabric = start()
windows = text(4, lengths=EVEN)
batches = [batch for window in windows for batch in window]
torch.manual_seed(0)
plain = TinyLM()
model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=3e-3))

for i, (ids, labels) in enumerate(batches):
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()) / K
    fabric.backward(loss)
    # fix: to accumulate K micro-batches, each loss divided by K
    optimizer.step()
    if (i + 1) % K == 0:
        optimizer.zero_grad()
    # end
model = plain
