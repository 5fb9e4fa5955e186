"""The gradients of summed losses are clipped, and divided by the window's tokens only then."""

import torch
import torch.nn.functional as F

from museum.parts import TinyLM, text, valid

torch.manual_seed(48)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
windows = text(6, seed=48)
max_norm = 1.0

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        logits = model(ids).flatten(0, 1)
        F.cross_entropy(logits, labels.flatten(), reduction="sum").backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for parameter in model.parameters():
        parameter.grad.div_(tokens)
    optimizer.step()
    optimizer.zero_grad()
