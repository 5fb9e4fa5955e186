"""Gradients come from torch.autograd.grad, and the loop adds them up for the optimizer itself."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(0)
model = TinyLM()
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(parameters, lr=3e-3)
windows = text(6)

for window in windows:
    total = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        loss = token_loss(model(ids), labels, "sum")
        gradients = torch.autograd.grad(loss / total, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            before = parameter.grad
            parameter.grad = gradient if before is None else before + gradient
    optimizer.step()
    optimizer.zero_grad()
