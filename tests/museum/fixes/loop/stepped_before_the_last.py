"""The optimizer steps after every micro-batch of an accumulation, which alone ends by zero_grad."""

import torch
import torch.nn.functional as F

from museum.parts import EVEN, TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4, lengths=EVEN)
batches = [batch for window in windows for batch in window]
K = 4

for i, (ids, targets) in enumerate(batches):
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()) / K
    loss.backward()
    # fix: to accumulate K micro-batches, each loss divided by K
    optimizer.step()
    if (i + 1) % K == 0:
        optimizer.zero_grad()
    # end
