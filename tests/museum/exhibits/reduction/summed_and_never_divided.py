"""reduce_loss=sum: every step is as large as its window is long."""

import torch

from museum.parts import TinyLM, text, token_loss

torch.manual_seed(21)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=3)
windows = text(6)

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels, reduction="sum")
        loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
