"""A masked divergence is averaged over the tokens, and multiplied by the squared temperature."""

import torch
from torch.nn.functional import kl_div

from museum.parts import IGNORED, TinyLM, text, valid

T = 2.0
torch.manual_seed(32)
teacher = TinyLM().requires_grad_(False)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = [
    [(ids, labels, torch.softmax(teacher(ids) / T, dim=-1)) for ids, labels in window]
    for window in text(8)
]

for window in windows:
    total = sum(valid(labels) for _, labels, _ in window)
    for ids, labels, soft in window:
        mask = labels != IGNORED
        student = torch.log_softmax(model(ids) / T, dim=-1)
        divergence = kl_div(student, soft, reduction="none").sum(-1)
        loss = (divergence * mask).sum() / total * T**2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
