"""Clipping by norm as older code bases write it, without clip_grad_norm_."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(15)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
LIMIT = 0.3

for window in text(8):
    total = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        (token_loss(model(ids), labels, "sum") / total).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.sqrt(torch.stack([g.square().sum() for g in gradients]).sum())
    if norm > LIMIT:
        for gradient in gradients:
            gradient.mul_(LIMIT / norm)
    optimizer.step()
    optimizer.zero_grad()
