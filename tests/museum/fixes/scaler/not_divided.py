"""Scaled means of equal micro-batches, added up."""

import torch
import torch.nn.functional as F

from museum.parts import EVEN, TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
windows = text(4, lengths=EVEN)

for window in windows:
    for ids, targets in window:
        logits, labels = model(ids).flatten(0, 1), targets.flatten()
        loss = F.cross_entropy(logits, labels)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
