"""The rate is set for each micro-batch, from the part of the epoch that has passed, as in MAE."""

import math

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

K, STEPS, EPOCHS = 4, 24, 3
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
batches = [batch for window in text(STEPS // EPOCHS, lengths=EVEN) for batch in window]

for epoch in range(EPOCHS):
    for i, (ids, labels) in enumerate(batches):
        part = epoch + i / len(batches)
        warm, cosine = part, (1 + math.cos(math.pi * (part - 1) / (EPOCHS - 1))) / 2
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (warm if part < 1 else cosine) + 1e-6
        (token_loss(model(ids), labels) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
