"""A constant loss scale by hand: the clip comes before the division, and so does its limit."""

import torch
import torch.nn.functional as F

from museum.parts import TinyLM, text, valid

torch.manual_seed(47)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
scale = 1024.0

for window in text(6, seed=47):
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / tokens
        (loss * scale).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scale)
    for parameter in model.parameters():
        parameter.grad.div_(scale)
    optimizer.step()
    optimizer.zero_grad()
