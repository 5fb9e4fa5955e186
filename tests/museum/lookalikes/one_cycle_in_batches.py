"""A schedule that is planned in batches, and stepped after each, as OneCycleLR is documented."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(35)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(8, lengths=EVEN)
batches = sum(len(window) for window in windows)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=batches)

for window in windows:
    for position, (ids, labels) in enumerate(window, start=1):
        (token_loss(model(ids), labels) / len(window)).backward()
        if position == len(window):
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
