"""Gradients are moved into buffers, and some micro-batches have no token that counts."""

import torch

from museum.parts import IGNORED, TinyLM, text, token_loss, valid

torch.manual_seed(26)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
main_grad = {p: torch.zeros_like(p) for p in model.parameters()}

for window in text(6):
    pair = window[:2]
    pair[0][1].fill_(IGNORED)
    tokens = sum(valid(labels) for _, labels in pair)
    for ids, labels in pair:
        (token_loss(model(ids), labels, reduction="sum") / tokens).backward()
        for p, buffer in main_grad.items():
            buffer += p.grad
            p.grad = None
    for p, buffer in main_grad.items():
        p.grad = buffer.clone()
        buffer.zero_()
    optimizer.step()
    optimizer.zero_grad()
