"""The sum of the rows that count, divided by their number."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text, valid

torch.manual_seed(33)
teacher, model = TinyLM(), TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
with torch.no_grad():
    windows = [
        [(ids, labels, teacher(ids).mul(4).softmax(-1)) for ids, labels in window]
        for window in text(5, seed=33)
    ]

for window in windows:
    tokens = sum(valid(labels) for _, labels, _ in window)
    for ids, labels, soft in window:
        log_p, mask = model(ids).log_softmax(-1), labels != IGNORED
        rows = F.kl_div(log_p, soft, reduction="none").sum(-1)
        loss = (rows * mask).sum() / tokens
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
