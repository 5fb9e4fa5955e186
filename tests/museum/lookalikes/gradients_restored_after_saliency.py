"""A second backward on the loss measures its logits; the gradients before it are copied back."""

import torch

from museum.parts import TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = text(6, lengths=[[(7, 4)], [(5, 6)]])
saliency = []

for window in windows:
    for ids, labels in window:
        logits = model(ids)
        logits.retain_grad()
        loss = token_loss(logits, labels)
        loss.backward(retain_graph=True)
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        logits.grad = None
        loss.backward()
        saliency.append(logits.grad.abs().sum(-1))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad.copy_(gradient)
    optimizer.step()
    optimizer.zero_grad()
