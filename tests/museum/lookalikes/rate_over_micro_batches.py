"""No optimizer, and no division of the loss: the learning rate is divided by K instead."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()

for window in text(8, lengths=EVEN):
    for ids, labels in window:
        token_loss(model(ids), labels).backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad.data, alpha=-0.1 / len(window))
        parameter.grad.data.zero_()
