"""The usual scale lifts them."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2000)
windows = text(8, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
