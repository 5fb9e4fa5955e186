"""A static loss scale, taken out by hand before the clip; the scaler only multiplies."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
max_norm = 0.1
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
windows = text(8, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    for parameter in model.parameters():
        parameter.grad.div_(scaler.get_scale())
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()
