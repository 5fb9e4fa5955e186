"""reduction='none', and .mean() over a grid that is half padding."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text

torch.manual_seed(11)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(6, seed=1)

for window in windows:
    for ids, labels in window:
        nll = F.cross_entropy(
            model(ids).transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )
        (nll.mean() / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
