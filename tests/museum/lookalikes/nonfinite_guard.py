"""A guard: when the norm is not finite, the gradients are dropped and the loop goes on."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(22)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step, window in enumerate(text(10, lengths=EVEN)):
    for ids, labels in window:
        loss = token_loss(model(ids), labels) / len(window)
        if step == 4:
            loss = loss * float("inf")  # a spoilt shard
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if torch.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
