"""Both halves step through the scaler, and update() follows the last."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW([*model.embed.parameters(), *model.mix.parameters()], lr=3e-3)
decoder = torch.optim.AdamW(model.head.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
windows = text(8, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.step(decoder)
    scaler.update()
    optimizer.zero_grad()
    decoder.zero_grad()
