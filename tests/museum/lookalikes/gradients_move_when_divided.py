"""The loop divides gradients into other memory: ``grad.data`` is assigned, and ``grad`` stays."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = text(6, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels)
        loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.data = parameter.grad.data / len(window)
    optimizer.step()
    optimizer.zero_grad()
