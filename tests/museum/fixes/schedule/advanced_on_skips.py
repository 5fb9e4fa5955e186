"""The schedule advances at every window, also at those that the scaler skips."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss
from museum.truth.tape import Tape

evidence, tape = "schedule", Tape()
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
windows = text(30, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    # fix
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    # end
    optimizer.zero_grad()
