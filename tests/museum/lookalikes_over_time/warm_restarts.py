"""Each restart of the schedule raises the loss for a while."""

import torch

from museum.parts import TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 60)

for [(ids, labels), *_] in text(300, lengths=[[[6, 8, 5, 9]]]):
    optimizer.zero_grad()
    token_loss(model(ids), labels).backward()
    optimizer.step()
    schedule.step()
