"""Label smoothing, summed and divided by the tokens of the window."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text, valid

torch.manual_seed(11)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for window in text(6, seed=2):
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        loss = F.cross_entropy(
            model(ids).flatten(0, 1),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=0.1,
            reduction="sum",
        )
        (loss / tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
