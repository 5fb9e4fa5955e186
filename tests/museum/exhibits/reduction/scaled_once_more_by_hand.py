"""Gradients are multiplied by a constant that was left over from an earlier setting."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
windows = text(6, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        (token_loss(model(ids), labels) / len(window)).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.3)
    optimizer.step()
    optimizer.zero_grad()
