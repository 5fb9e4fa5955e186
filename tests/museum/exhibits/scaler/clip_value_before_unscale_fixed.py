"""unscale_ first, then clip by value."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
max_value = 0.01
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
windows = text(8, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_value_(model.parameters(), max_value)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
