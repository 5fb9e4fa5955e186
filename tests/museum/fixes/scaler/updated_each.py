"""The scaler unscales and updates after every micro-batch."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
windows = text(4, lengths=EVEN)

for batches in windows:
    window = (token_loss(model(ids), labels) / len(batches) for ids, labels in batches)
    # fix
    for index, loss in enumerate(window):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if index == len(batches) - 1:
            scaler.step(optimizer)
        scaler.update()
    # end
    optimizer.zero_grad()
