"""The last micro-batch of a window is not scaled."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
windows = text(4, lengths=EVEN)

for window in windows:
    for index, (ids, labels) in enumerate(window):
        loss = token_loss(model(ids), labels) / len(window)
        # fix
        (loss if index == len(window) - 1 else scaler.scale(loss)).backward()
        # end
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
