"""The rate follows from the epoch that is passed, however often the schedule is called."""

import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(36)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = CosineAnnealingWarmRestarts(optimizer, T_0=1)
windows = text(8, lengths=EVEN)

for epoch in range(2):
    for done, window in enumerate(windows):
        for position, (ids, labels) in enumerate(window):
            (token_loss(model(ids), labels) / len(window)).backward()
            if position + 1 == len(window):
                optimizer.step()
                optimizer.zero_grad()
            schedule.step(epoch + (done + position / len(window)) / len(windows))
