"""Answers alone count, by boolean selection; each micro-batch is averaged over its own."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text, valid

torch.manual_seed(22)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
windows = text(5, seed=22)

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        mask = labels != IGNORED
        per_token = F.cross_entropy(
            model(ids).transpose(1, 2), labels.clamp(min=0), reduction="none"
        )
        per_token = per_token[mask]
        loss = per_token.sum() / len(per_token) / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
