"""Distillation alone: the divergence of the rows that count, averaged for each micro-batch."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text, valid

torch.manual_seed(31)
teacher, model = TinyLM(), TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
with torch.no_grad():
    windows = [
        [(ids, labels, teacher(ids).mul(4).softmax(-1)) for ids, labels in window]
        for window in text(5, seed=31)
    ]

for window in windows:
    tokens = sum(valid(labels) for _, labels, _ in window)
    for ids, labels, soft in window:
        log_p, mask = model(ids).log_softmax(-1), labels != IGNORED
        rows = F.kl_div(log_p, soft, reduction="none").sum(-1)
        loss = (rows * mask).sum() / mask.sum() / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
