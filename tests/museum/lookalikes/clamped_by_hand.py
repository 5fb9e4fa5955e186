"""Clipping by value and weight decay by hand, on the gradients."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(16)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for window in text(6):
    total = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        (token_loss(model(ids), labels, "sum") / total).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.data.clamp_(-0.01, 0.01)
        parameter.grad.data.add_(parameter.data, alpha=1e-3)
    optimizer.step()
    optimizer.zero_grad()
