"""The loss is divided for an accumulation, and the optimizer steps after every micro-batch."""

import torch
import torch.nn.functional as F

from museum.parts import EVEN, TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4, lengths=EVEN)
K = 4

loader = [batch for window in windows for batch in window]
for i, (ids, targets) in enumerate(loader):
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()) / K
    # fix
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    # end
