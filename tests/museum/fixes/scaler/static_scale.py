"""A constant loss scale by hand, which is divided out after the clip."""

import torch
import torch.nn.functional as F

from museum.parts import TinyLM, text, valid

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
windows = text(4)
scale, max_norm = 1024.0, 1.0

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / tokens
        (loss * scale).backward()
    # fix
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for p in model.parameters():
        p.grad.div_(scale)
    optimizer.step()
    # end
    optimizer.zero_grad()
