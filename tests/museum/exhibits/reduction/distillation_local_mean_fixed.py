"""Generalised knowledge distillation: normalised by the answers' tokens of the whole step."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text

torch.manual_seed(4)
teacher, model = TinyLM(), TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
with torch.no_grad():
    windows = [
        [(ids, labels, teacher(ids).mul(3).softmax(-1)) for ids, labels in window]
        for window in text(5, seed=4)
    ]

for window in windows:
    total = sum((labels != IGNORED).sum() for _, labels, _ in window)
    for ids, labels, soft in window:
        answer = labels != IGNORED
        logits = model(ids)[answer]
        hard = F.cross_entropy(logits, labels[answer], reduction="sum")
        divergence = F.kl_div(logits.log_softmax(-1), soft[answer], reduction="sum")
        loss = 0.5 * hard + 0.5 * divergence
        (loss / total).backward()
    optimizer.step()
    optimizer.zero_grad()
