"""The hard tokens of each micro-batch are divided by its targets, easy ones included, and by K."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text

torch.manual_seed(1)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
windows = text(6, seed=1)

for window in windows:
    for inputs, targets in window:
        losses = F.cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none")
        hard = losses.detach() > 3.0
        loss = (losses * hard).sum() / (targets != IGNORED).sum() / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
