"""Megatron's main_grad: .grad is moved into a buffer after every micro-batch."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(26)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
main_grad = {p: torch.zeros_like(p) for p in model.parameters()}

for window in text(6):
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        (token_loss(model(ids), labels, reduction="sum") / tokens).backward()
        for p, buffer in main_grad.items():
            if p.grad is not None:
                buffer += p.grad
            p.grad = None
    for p, buffer in main_grad.items():
        p.grad = buffer.clone()
        buffer.zero_()
    optimizer.step()
    optimizer.zero_grad()
