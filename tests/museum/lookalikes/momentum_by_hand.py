"""No optimizer: the loop keeps its velocities, and updates the parameters itself."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(0)
model = TinyLM()
parameters = list(model.parameters())
velocities = [torch.zeros_like(parameter) for parameter in parameters]

for window in text(8):
    total = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        (token_loss(model(ids), labels, "sum") / total).backward()
    with torch.no_grad():
        for parameter, velocity in zip(parameters, velocities, strict=True):
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(0.05 * velocity)
            parameter.grad = None
