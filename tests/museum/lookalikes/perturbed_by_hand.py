"""Sharpness-aware minimisation without an optimizer: two backwards for each update."""

import torch

from museum.parts import TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
parameters = list(model.parameters())

for window in text(8):
    ids, labels = window[0]
    token_loss(model(ids), labels).backward()
    with torch.no_grad():
        size = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
        moves = [0.05 * parameter.grad / size for parameter in parameters]
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.add_(move)
            parameter.grad = None
    token_loss(model(ids), labels).backward()
    with torch.no_grad():
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.sub_(move).sub_(0.1 * parameter.grad)
            parameter.grad = None
