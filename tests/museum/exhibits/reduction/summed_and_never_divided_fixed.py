"""reduce_loss=sum, divided by the tokens of the window."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(21)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=3)
windows = text(6)

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels, reduction="sum")
        (loss / sum(valid(each) for _, each in window)).backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
